"""A function that Python calls without a step of Python in between, as LLVM IR text.

It checks the arguments as `take` does, makes the array of the result, and runs a plan. Python's own steps for
this take about a microsecond. Arguments that aren't as wanted go to a general function of Python.

Python's lock protects the record of a call: nothing that may run Python's code comes between the test of
`busy` and its setting."""

from __future__ import annotations

from jangin.backends.llvm.functions import called, head
from jangin.backends.llvm.take import TAKEN, word
from jangin.runtime.calls import HEAD, INTERFACE, RECORD, STATE
from jangin.runtime.functions import CALL, ENTRY


def call_text() -> str:
    """Return the text of the function named `CALL`, by which Python calls a model. It checks the arguments by
    the function of `take.take_module`."""
    return _TEXT


def _field(name: str, field: str, kind: str = "i64") -> str:
    """Return a word of the call's record as %name."""
    return word(name, "%record", RECORD.index(field), kind)


def _python(name: str) -> str:
    """Return the address of a function of Python as %name."""
    return word(name, "%python", INTERFACE.index(name), "ptr")


_TEXT = f"""
define {head(CALL)} {{
entry:
  %state.at = getelementptr i8, ptr %self, i64 {HEAD}
  %state = load ptr, ptr %state.at
{word("record", "%state", STATE.index("record"), "ptr")}
{word("python", "%state", STATE.index("python"), "ptr")}
  %is.ready = icmp ne ptr %record, null
  br i1 %is.ready, label %ready, label %general
ready:
{_field("busy", "busy")}
{_field("wanted", "wanted", "ptr")}
{_field("named", "named")}
{_field("names.at", "names", "ptr")}
{word("length", "%wanted", 3)}
  %total = add i64 %count, %named
  %as.many = icmp eq i64 %total, %length
  %is.free = icmp eq i64 %busy, 0
  %possible = and i1 %as.many, %is.free
  br i1 %possible, label %names.there, label %general
names.there:
  %has.names = icmp ne ptr %names, null
  %wants.names = icmp ne i64 %named, 0
  %alike = icmp eq i1 %has.names, %wants.names
  br i1 %alike, label %names.both, label %general
names.both:
  br i1 %has.names, label %names.counted, label %objects
names.counted:
{word("items", "%wanted", 2)}
  %names.count.at = getelementptr i8, ptr %names, i64 {HEAD}
  %names.count = load i64, ptr %names.count.at
  %names.first = getelementptr i8, ptr %names, i64 %items
  %names.fit = icmp eq i64 %names.count, %named
  br i1 %names.fit, label %name, label %general
name:
  %n = phi i64 [ 0, %names.counted ], [ %n1, %name.next ]
  %names.done = icmp eq i64 %n, %named
  br i1 %names.done, label %objects, label %name.next
name.next:
{word("own.name", "%names.first", "%n", "ptr")}
{word("wanted.name", "%names.at", "%n", "ptr")}
  %n1 = add i64 %n, 1
  %same.name = icmp eq ptr %own.name, %wanted.name
  br i1 %same.name, label %name, label %general
objects:
{_field("table", "table", "ptr")}
  %fits = call i1 @{TAKEN}(ptr %args, ptr %table, ptr %wanted)
  br i1 %fits, label %factor, label %general
factor:
{_field("factor.at", "factor", "ptr")}
  %has.factor = icmp ne ptr %factor.at, null
  br i1 %has.factor, label %factor.read, label %make
factor.read:
{_field("factor.single", "factor.single")}
  %is.single = icmp ne i64 %factor.single, 0
  br i1 %is.single, label %factor.narrow, label %factor.wide
factor.narrow:
  %narrow = load float, ptr %factor.at
  %narrow.some = fcmp une float %narrow, 0.0
  br i1 %narrow.some, label %make, label %general
factor.wide:
  %wide = load double, ptr %factor.at
  %wide.some = fcmp une double %wide, 0.0
  br i1 %wide.some, label %make, label %general
make:
  %busy.to = getelementptr i64, ptr %record, i64 {RECORD.index("busy")}
  store i64 1, ptr %busy.to
{_field("maker", "maker", "ptr")}
  %makes = icmp ne ptr %maker, null
  br i1 %makes, label %making, label %run
making:
{_field("argument", "argument")}
{_field("first.word", "first")}
{_field("second.word", "second")}
{_field("third.word", "third")}
{_field("fourth.word", "fourth")}
  %of.argument = icmp sge i64 %argument, 0
  %safe = select i1 %of.argument, i64 %argument, i64 0
{word("object", "%args", "%safe")}
  %first = select i1 %of.argument, i64 %object, i64 %first.word
{_field("shared", "shared", "ptr")}
{_python("Py_IncRef")}
  call void %Py_IncRef(ptr %shared)
  %made = call ptr %maker(i64 %first, i64 %second.word, i64 %third.word, i64 %fourth.word)
  %is.made = icmp ne ptr %made, null
  br i1 %is.made, label %placed, label %failed
failed:
  store i64 0, ptr %busy.to
  ret ptr null
placed:
{_field("place.count", "places")}
{_field("places.at", "places.at", "ptr")}
  %data.at = getelementptr i8, ptr %made, i64 {HEAD}
  br label %place
place:
  %p = phi i64 [ 0, %placed ], [ %p1, %place.next ]
  %places.done = icmp eq i64 %p, %place.count
  br i1 %places.done, label %run, label %place.next
place.next:
  %data = load ptr, ptr %data.at
{word("index", "%places.at", "%p")}
  %to = getelementptr ptr, ptr %table, i64 %index
  store ptr %data, ptr %to
  %p1 = add i64 %p, 1
  br label %place
run:
  %result = phi ptr [ null, %make ], [ %made, %place ]
{_field("code", "entry", "ptr")}
{_field("bufs", "bufs", "ptr")}
{_field("symbols", "symbols", "ptr")}
{_field("pool", "pool", "ptr")}
{_field("scratch", "scratch", "ptr")}
{_field("stride", "stride")}
{_field("unlocks", "unlocks")}
  %is.long = icmp ne i64 %unlocks, 0
  br i1 %is.long, label %long, label %short
short:
  %short.status = {called(ENTRY, "%code", "%bufs", "%symbols", "%pool", "%scratch", "%stride")}
  br label %ran
long:
{_python("PyEval_SaveThread")}
{_python("PyEval_RestoreThread")}
  %thread = call ptr %PyEval_SaveThread()
  %long.status = {called(ENTRY, "%code", "%bufs", "%symbols", "%pool", "%scratch", "%stride")}
  call void %PyEval_RestoreThread(ptr %thread)
  br label %ran
ran:
  store i64 0, ptr %busy.to
{_field("kind", "value")}
{_field("value.at", "value.at", "ptr")}
  switch i64 %kind, label %array [ i64 1, label %double  i64 2, label %single  i64 3, label %integer
                                    i64 4, label %doubles  i64 5, label %singles ]
array:
  ret ptr %result
integer:
  %whole = load i64, ptr %value.at
{_python("PyLong_FromLongLong")}
  %integer.object = call ptr %PyLong_FromLongLong(i64 %whole)
  ret ptr %integer.object
single:
  %single.value = load float, ptr %value.at
  %single.wide = fpext float %single.value to double
  br label %number
double:
  %double.value = load double, ptr %value.at
  br label %number
number:
  %value.number = phi double [ %single.wide, %single ], [ %double.value, %double ]
{_python("PyFloat_FromDouble")}
  %float.object = call ptr %PyFloat_FromDouble(double %value.number)
  ret ptr %float.object
singles:
  %singles.to = getelementptr float, ptr %value.at, i64 1
  %single.re = load float, ptr %value.at
  %single.im = load float, ptr %singles.to
  %wide.re = fpext float %single.re to double
  %wide.im = fpext float %single.im to double
  br label %pair
doubles:
  %doubles.to = getelementptr double, ptr %value.at, i64 1
  %double.re = load double, ptr %value.at
  %double.im = load double, ptr %doubles.to
  br label %pair
pair:
  %re = phi double [ %wide.re, %singles ], [ %double.re, %doubles ]
  %im = phi double [ %wide.im, %singles ], [ %double.im, %doubles ]
{_python("PyComplex_FromDoubles")}
  %pair.object = call ptr %PyComplex_FromDoubles(double %re, double %im)
  ret ptr %pair.object
general:
{word("function", "%state", STATE.index("general"), "ptr")}
{_python("PyObject_Vectorcall")}
  %general.result = call ptr %PyObject_Vectorcall(ptr %function, ptr %args, i64 %count, ptr %names)
  ret ptr %general.result
}}
"""
