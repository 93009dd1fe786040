"""Devices that a farm believes and the races that it gives them, on simulated boards with their own clock."""

from __future__ import annotations

import random

import pytest
from simulated import Board, Boards, chosen, coordinator, finish, jobs, kernels, right

from jangin.farm.coordinator import DEATHS, HOT, REST, Device, SchedulerGone
from jangin.farm.jobs import Answer, Job, Votes


def boards(seed: int, count: int, **habits: float) -> Boards:
    rng = random.Random(seed)
    made = {
        f"board {n}": Board(rng.uniform(0.5, 1.5), rng.uniform(0.01, 0.5), **habits) for n in range(count)
    }
    return Boards(made, kernels(rng, 20, 24), rng)


@pytest.mark.parametrize("lies", [1.0, 0.5])
@pytest.mark.parametrize("seed", range(2))
def test_200_boards_with_failures_and_5_percent_liars_end_with_the_right_winners(
    seed: int, lies: float
) -> None:
    there = boards(seed, 200, dies=0.02, hangs=0.01, heats=0.03)
    there.truth = kernels(there.rng, 60, 120)
    liars = [f"board {n}" for n in there.rng.sample(range(200), 10)]
    for name in liars:
        there.boards[name].lies = lies
    said: list[str] = []
    made = coordinator(there, said)
    finish(made, there)
    assert chosen(made) == right(there.truth), f"seed {seed}"
    assert not any(votes.alone for votes in made.winners().values())
    assert made.disputed == [] == made.given_up
    wrong = {d.name for d in made.known.values() if "disagreed" in d.out}
    assert wrong <= {*liars}, "an honest board is left out as a liar"
    doubted = {d.name for d in made.known.values() if d.strikes}
    told = {name for name in liars if made.known[name].answered}
    assert doubted <= {*liars} and (doubted >= told if lies == 1.0 else len(doubted) >= 5)
    assert all(any(text.startswith(f"{name} is left out") for text in said) for name in wrong)
    assert there.jobs < 1.5 * len(jobs(there.truth)), "checks cost too much"


@pytest.mark.parametrize("seed", range(4))
def test_two_devices_take_at_most_0_6_of_the_time_of_one(seed: int) -> None:
    """A winner is confirmed alone. Racing all its rivals again took two devices 0.65 of one's time."""
    ends = []
    for count in (1, 2):
        fleet = boards(seed, 0)
        fleet.boards = {f"board {n}": Board(1.0, 0.01) for n in range(count)}
        fleet.truth = kernels(fleet.rng, 10, 6)
        made = coordinator(fleet, [])
        finish(made, fleet)
        assert chosen(made) == right(fleet.truth)
        ends.append(fleet.clock)
    assert not any(votes.alone for votes in made.winners().values())
    assert ends[1] <= 0.6 * ends[0]


def test_a_winner_that_isnt_confirmed_leaves_the_next_to_be_confirmed() -> None:
    """Device 1 finds `a` quickest. Device 2 finds it slow, and confirms the next, `b`, then."""
    votes = Votes(Job("k", ("a", "b")), {"1": Answer((0.95, 0.97), 1.0)})
    assert votes.alone == "a" and votes.lacks("2") and not votes.lacks("1")
    votes.answers["2"] = Answer((1.02,), 1.0).placed(votes.job, "a", None)
    assert not votes.disputed and votes.alone == "b" and votes.lacks("2") and not votes.answers["2"].whole
    votes.answers["2"] = Answer((0.96,), 1.0).placed(votes.job, "b", votes.answers["2"])
    assert votes.answers["2"].ratios == (1.02, 0.96) and votes.best() == ("b", 0.965) and not votes.alone


def test_a_device_alone_is_believed() -> None:
    there = boards(1, 1)
    made = coordinator(there, [])
    finish(made, there)
    assert chosen(made) == right(there.truth)
    assert there.jobs == len(jobs(there.truth)), "nothing is repeated"
    assert {*made.measured()} == {(k, c) for k, r in there.truth.items() for c in r}


def test_a_device_that_goes_away_loses_nothing() -> None:
    there, said = boards(2, 3), list[str]()
    made = coordinator(there, said)
    for _ in range(5):
        made.step()
    gone = next(iter(there.begun))
    there._away[gone] = float("inf")
    finish(made, there)
    assert chosen(made) == right(there.truth)
    assert any(text.startswith(f"{gone} went away") for text in said)


def test_a_device_that_hangs_is_started_anew_and_then_left_out() -> None:
    there, said = boards(3, 3), list[str]()
    there.boards["board 0"].hangs = 1.0
    made = coordinator(there, said)
    finish(made, there)
    assert chosen(made) == right(there.truth)
    assert sum("board 0 hung for 30 s" in text for text in said) == DEATHS
    assert made.known["board 0"].out


def test_a_throttled_device_rests_and_is_left_out_if_it_stays_so() -> None:
    there, said = boards(4, 3), list[str]()
    there.truth = kernels(there.rng, 40, 60)
    made = coordinator(there, said)
    for _ in range(5):
        made.step()
    there.boards["board 1"].heats = 1.0
    finish(made, there)
    assert chosen(made) == right(there.truth)
    assert "throttled" in made.known["board 1"].out
    assert sum("board 1 runs at" in text for text in said) == HOT
    assert not any(d.out for n, d in made.known.items() if n != "board 1")


def test_a_device_that_was_slow_once_needs_no_rest() -> None:
    made = coordinator(boards(0, 1), [])
    device, now = Device("board 0", loops=[1.0]), made.transport.now()
    rests = []
    for loop in (1.5, 1.5, 1.5, 1.0, 1.5):
        made._throttled(device, 1.0, loop)
        rests.append(device.rests_until - now)
    assert rests[1:3] == [REST, 2 * REST] and rests[0] <= 0 and device.hot == 1


def test_a_candidate_that_kills_devices_is_given_up_alone() -> None:
    there, said = boards(5, 30), list[str]()
    killer = "3.7"
    there.truth["kernel 3"][killer] = 0.9
    there.killers = frozenset([killer])
    made = coordinator(there, said)
    finish(made, there)
    assert made.given_up == [Job("kernel 3", (killer,))]
    assert chosen(made) == right(there.truth)
    assert ("kernel 3", killer) in {*made.measured()}, "it isn't tried again"


def test_two_that_disagree_decide_nothing_until_a_third_comes() -> None:
    there, said = boards(6, 2), list[str]()
    there.boards["board 1"].lies = 1.0
    made = coordinator(there, said)
    finish(made, there)
    assert made.disputed and any("disagree" in text for text in said)
    assert all(not v.believed for v in made.votes.values() if v.job in made.disputed)
    there.boards |= {"board 2": Board(), "board 3": Board()}
    finish(made, there)
    assert not made.disputed and chosen(made) == right(there.truth)


def test_the_time_being_over_begins_no_new_race() -> None:
    there = boards(7, 2)
    made = coordinator(there, [])
    for _ in range(40):
        made.step()
    before = made.left
    while made.step(accepting=False):
        pass
    assert 0 < made.left <= before and not any(v.alone for v in made.winners().values())
    measured = {*made.measured()}
    assert all((v.job.kernel, v.job.candidates[0]) in measured for v in made.winners().values())


def test_a_scheduler_that_comes_back_costs_nobody_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    there = boards(8, 4)
    made = coordinator(there, [])
    for _ in range(10):
        made.step()

    def gone() -> None:
        raise SchedulerGone("it is gone")

    with monkeypatch.context() as patch:
        patch.setattr(there, "devices", gone)
        with pytest.raises(SchedulerGone):
            made.step()
    there.begun.clear()
    there._ends.clear()
    made.forget()
    finish(made, there)
    assert chosen(made) == right(there.truth)
    assert not any(d.deaths for d in made.known.values())


@pytest.mark.parametrize(
    ("figures", "disputed", "counted"),
    [
        ([0.5], False, 1), ([0.5, 0.55], False, 2), ([0.5, 0.9], True, 0), ([0.5, 0.9, 0.52], False, 2),
        ([0.5, 0.9, 1.5], True, 0), ([0.5, 0.9, 0.5, 0.9], True, 0), ([0.5, None], True, 0),
        ([None, None], False, 2),
    ],
)  # fmt: skip
def test_votes(figures: list[float | None], disputed: bool, counted: int) -> None:
    answers = {str(n): Answer((f, 2.0), 1.0) for n, f in enumerate(figures)}
    votes = Votes(Job("k", ("a", "b")), answers)
    assert (votes.disputed, len(votes.believed)) == (disputed, counted)
    best = votes.best()
    assert (best is not None and best[0] == "a") == (counted > 0 and figures[0] is not None)


def test_a_winner_is_quicker_by_each_device() -> None:
    votes = Votes(Job("k", ("a",)), {"1": Answer((0.9,), 1.0), "2": Answer((1.0,), 1.0)})
    assert not votes.disputed and votes.best() is None and not votes.alone


def test_answers_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator asks for a job's winner after each event, and many idle devices repeat a job."""
    compared, agrees = [0], Answer.agrees

    def counted(self: Answer, other: Answer) -> bool:
        compared[0] += 1
        return agrees(self, other)

    monkeypatch.setattr(Answer, "agrees", counted)
    votes = Votes(Job("k", tuple("abc")))
    for n in range(20):
        votes.answers[f"board {n}"] = Answer((0.9, 0.8, 1.0), 1.0)
    for _ in range(5):
        assert votes.best() == ("b", 0.8) and not votes.disputed and not votes.alone
    assert compared[0] == 20 * 20
    votes.answers["board 0"] = Answer((2.0, 2.0, 2.0), 1.0)
    assert "board 0" not in votes.believed
