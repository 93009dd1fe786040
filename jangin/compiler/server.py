"""What the compiler's own process does (see `compiler.isolated`)."""

from __future__ import annotations

from multiprocessing.connection import Connection

from jangin.compiler.build import start_workers
from jangin.compiler.forked import sendable
from jangin.compiler.request import carry_out
from jangin.runtime.artifact import Artifact


def serve(pipe: int, spare: int) -> None:
    """Build what the pipe asks for, tell how it goes, and end. What the cache doesn't keep is written to the
    file `spare`. While the model is read, a worker gets ready to make its kernels."""
    with Connection(pipe) as connection:
        request, told = connection.recv()
        try:
            tell = (lambda *step: connection.send(("step", *step))) if told else None
            with start_workers(request.target) as workers:
                artifact, path = carry_out(request, tell, workers=workers)
                workers.close()
                if path is None:
                    with open(spare, "wb", closefd=False) as file:
                        if isinstance(artifact, Artifact):
                            artifact.write(file, kept=False)
                        else:
                            artifact.write(file)
            connection.send(("built", path))
        except Exception as error:
            connection.send(("failed", sendable(error)))
