"""Raise the error for what cannot run as a whole program: fact, reason and way out, a row each."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NoReturn

import torch
from torch.nn.parameter import is_lazy

from weft.errors import InternalError, UnsupportedError, UsageError, WeftError, first_line_of, source_line
from weft.ir.graph import Place
from weft.trace.interception.user_lines import is_raised_by_weft, library_place, place_of

ONCE = "hybridize runs Python once per signature; whatever Python learned from a tensor's value would stay as it was"
SAME_SIZES = "an argument keeps its sizes over a call of a program"
SIZES = "a program's sizes are fixed when it is traced"
PARTS_AROUND = "hybridize the parts around it; without whole=True it runs as paths"
KEEP_EAGER = "hybridize the parts around it; without whole=True Python runs it at each call"
# Instead of a row's own way out, where PyTorch's own code looks at values: by folder or file, for which rows.
OF_LIBRARY: tuple[tuple[str, str, str], ...] = (
    (
        "torch/distributions/",
        ONCE,
        "pass validate_args=False to the distribution, whose checks look at values, or " + KEEP_EAGER,
    ),
    (
        "torch/ao/quantization/",
        SAME_SIZES,
        "call the module once before it is hybridized: observers then know how many channels there are; or "
        + KEEP_EAGER,
    ),
    (
        "torch/nn/utils/rnn.py",
        SIZES,
        "give the layer the padded batch: in one direction nothing behind the end of a sequence reaches what is before "
        "it; leave it out of the loss, and take last states at lengths - 1; or " + KEEP_EAGER,
    ),
)

# The rows: what is refused, why, and what to do about it.
REFUSALS: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "branch": (
            "the program branches on the value of a tensor",
            ONCE,
            "use torch.where(condition, a, b), or " + PARTS_AROUND,
        ),
        "number": (
            "the program turns a tensor into a Python number",
            ONCE,
            "keep the value as a zero-dimensional tensor, or move .item() out of the hybridized code; or "
            + PARTS_AROUND,
        ),
        "numpy": (
            "the program hands a tensor to NumPy",
            "NumPy works on memory, and while Python is traced there are no elements yet",
            "use the torch function of the same name, or convert after the call; or " + KEEP_EAGER,
        ),
        "saved": (
            "the program saves or pickles a tensor",
            "while Python is traced there are no elements yet",
            "save it outside of the call; or " + KEEP_EAGER,
        ),
        "caught": (
            "the program catches what an operator raises",
            "whether it raises depends on elements, and while Python is traced there are none yet",
            "check before what would raise, or catch it around the call; or " + KEEP_EAGER,
        ),
        "list": (
            "the program turns a tensor into a Python list",
            ONCE,
            "index or stack tensors instead, or call .tolist() on the result; or " + PARTS_AROUND,
        ),
        "text": (
            "the program writes the value of a tensor as text",
            ONCE,
            "write it after the call, or print the tensor itself (print(x)): that shows its type and sizes, once; or "
            + KEEP_EAGER,
        ),
        "print": (
            "the program prints a tensor, or prints or logs where values decide what it does",
            "a program prints once, when it is made, and each call has something else to say",
            "print after the call; or " + KEEP_EAGER,
        ),
        "identity": (
            "the program keeps the identity of a tensor",
            "each call is given, or makes, other tensors, and while Python is traced there are none yet",
            "keep the tensor itself, or compare tensors with `is`; or " + KEEP_EAGER,
        ),
        "address": (
            "the program reads the address of a tensor's memory",
            "while Python is traced there is no memory yet, and each call uses other memory",
            "compare tensors with `is`, or " + KEEP_EAGER,
        ),
        "version": (
            "the program reads the version of a tensor's memory",
            "each write makes another version, and each version would be another program",
            "compare elements, or read the version outside; or " + KEEP_EAGER,
        ),
        "tensor attribute": (
            "the program puts a Python attribute on a tensor",
            "Python runs once per signature, and each call has other tensors",
            "return what is to be kept, or put it on the tensor outside of the hybridized code; or " + KEEP_EAGER,
        ),
        "data-dependent shape": (
            "the size of a result depends on the values of a tensor",
            SIZES,
            "use a form of fixed size (torch.where, masked_fill, a mask multiplied in), or " + PARTS_AROUND,
        ),
        "data-dependent value": (
            "the program needs the value of a tensor while it is traced",
            ONCE,
            "keep the value in a tensor, or " + KEEP_EAGER,
        ),
        "captured write": (
            "the program writes into a tensor that is no argument and lives where Weft does not look",
            "each run has to find the tensor that is there then: in an attribute, a name, a dictionary or a list",
            "pass the tensor as an argument, or keep it in an attribute of the module",
        ),
        "aliased write with gradient": (
            "the program writes into one of several arguments that share memory, and the result carries a gradient",
            "a gradient would have to flow through memory that several arguments look into",
            "pass clones, or write under torch.no_grad()",
        ),
        "detached gradient": (
            "the program gives back a tensor, and a detached view of it that a write gave a gradient of its own",
            "one piece of memory would carry two gradients out of the program",
            "detach().clone() the one, and write into that",
        ),
        "backward inside": (
            "the program calls backward()",
            "gradients would be added to stand-ins of the parameters and be lost",
            "use torch.autograd.grad inside, or call backward() on the result outside",
        ),
        "gradient read": (
            "the program reads .grad of a tensor",
            "gradients are added up outside of programs, between calls",
            "use torch.autograd.grad inside, or read .grad outside the hybridized code",
        ),
        "gradient kept": (
            "the program asks for the gradient of a tensor in the middle: retain_grad()",
            "a program has one backward, which gives the gradients of what went in",
            "return it and call torch.autograd.grad outside, or keep the gradient by a hook; or " + KEEP_EAGER,
        ),
        "gradient put": (
            "the program assigns .grad of a tensor",
            "gradients are added up outside of programs, between calls",
            "set .grad to None, or to what it is to be, outside the hybridized code; or " + KEEP_EAGER,
        ),
        "reentrant checkpoint": (
            "the program calls the function behind checkpoints with use_reentrant=True itself",
            "it calls backward() while gradients are computed, and would add to stand-ins of parameters",
            "call torch.utils.checkpoint.checkpoint, with either use_reentrant",
        ),
        "late capture": (
            "the backward uses a tensor that the forward has not used",
            "what a program is given is fixed when its forward has been traced",
            "keep the tensor in forward with context.save_for_backward, or " + KEEP_EAGER,
        ),
        "uneven backward": (
            "the backward reads other values for this combination of results than it did for all results",
            "what a backward may read was fixed when the forward was traced",
            "use every result of the hybridized module in the loss, or " + KEEP_EAGER,
        ),
        "read in backward": (
            "the backward runs code that reads what each call has another of",
            "a program's backward is traced once, and what its code reads in Python is compared in places that last",
            "read it in the forward, and let the hook or the context keep what was read; or " + KEEP_EAGER,
        ),
        "backward write": (
            "the backward writes into a tensor that the program was given or reaches",
            "a program's backward changes nothing; in a checkpoint, a batch norm counts each batch once more in it",
            "keep batch norms out of checkpoints, train with weft.step, whose backward is part of the program, or "
            + KEEP_EAGER,
        ),
        "hooked result": (
            "the program has a hook inside that changes the gradient of a result",
            "a hook is part of a program's backward; who asks outside for the gradient would get what came before it",
            "put the hook on what the result is computed from, or on the result outside; or " + KEEP_EAGER,
        ),
        "foreign tensor": (
            "the program uses a tensor that tracing has not seen being made",
            "it was made by another trace, or by code that goes around PyTorch's operators",
            "make it inside the function or pass it as an argument; " + KEEP_EAGER,
        ),
        "foreign argument": (
            "an operator is called with an argument that a program cannot hold",
            "programs hold tensors, numbers, text, dtypes, devices, layouts and generators",
            KEEP_EAGER,
        ),
        "reinterpreted memory": (
            "the program writes into memory that is looked at as two element types",
            "a program's values have one element type each",
            "work on .clone() of the reinterpreted view",
        ),
        "memory replaced": (
            "the program replaces the memory of a tensor",
            "set_(), and .data of other sizes, strides or another type, change what a tensor is for the next call",
            "assign .data of the same sizes and type, copy into the tensor with copy_(), or " + KEEP_EAGER,
        ),
        "forward mode": (
            "the program is differentiated in forward mode",
            "a program has a backward, but computes no tangents",
            "call it imperatively there (weft.hybridize(net, False)), or use torch.autograd.grad",
        ),
        "setting": (
            "the program leaves a mode or a setting of PyTorch changed (grad mode, default dtype, determinism)",
            "Python runs once per signature, so later calls would not change it",
            "use the form with a block (with torch.no_grad():), or change it outside of the hybridized code",
        ),
        "lazy bit": (
            "the program writes into, or gives back, a tensor with the negative or the conjugate bit",
            "its memory holds numbers of the other sign than the tensor stands for",
            "pass x.resolve_conj() or x.resolve_neg()",
        ),
        "input resized": (
            "the program resizes a tensor that it is given",
            SAME_SIZES,
            "make a new tensor and return it",
        ),
        "input reshaped in place": (
            "the program changes the sizes or strides of a tensor that it is given",
            "an argument keeps its sizes and strides over a call of a program",
            "use the form without underscore (t, transpose, squeeze) and return the result",
        ),
        "made leaf": (
            "the program returns a tensor that was made to require a gradient inside it, and what it computed of that",
            "a program's results are computed of what it is given; nothing would tie one to another",
            "make the tensor outside and pass it as an argument, or return one of the two",
        ),
        "gradient flag": (
            "the program changes whether a tensor requires a gradient that it is given in two ways",
            "an argument that the function also reaches by itself is two tensors in a program",
            "call requires_grad_() before the call, or work on x.detach() or x.clone()",
        ),
        "many operators": (
            "the program calls more operators than can be made one program",
            "it is a loop, each of whose rounds would be compiled by itself",
            "hybridize what a round calls, or compute many rounds by one operator; or " + KEEP_EAGER,
        ),
        "packed sequence": (
            "the program needs to know how many rows a packed batch has",
            SIZES,
            "pad it again with pad_packed_sequence, and work on that; layers with dropout between them draw it for "
            "each row, so make them layers of their own; or " + KEEP_EAGER,
        ),
        "random state": (
            "the program sets the random generator to a state from before it, or hands out the state that it is in",
            "each call finds it in another state, and another one may have been kept",
            "seed it (torch.manual_seed), or get and set states outside of the hybridized code; or " + KEEP_EAGER,
        ),
        "python draw": (
            "the program draws random numbers in Python",
            "hybridize runs Python once per signature, so every run would use the numbers of the first",
            "draw them with PyTorch (torch.rand(()), torch.randint), one by one from a generator of your own "
            "(rng.normal()), or pass them as arguments; or " + KEEP_EAGER,
        ),
        "impure call": (
            "the program asks Python for what is another answer each time",
            "hybridize runs Python once per signature, so every run would use the first answer",
            "ask before the call, and pass the answer as an argument; or " + KEEP_EAGER,
        ),
        "iterator": (
            "the program takes what comes next of an iterator, or reads a file, that was there before",
            "hybridize runs Python once per signature, so every run would get what came at the first",
            "take it before the call, and pass it as an argument; or " + KEEP_EAGER,
        ),
        "weak reference": (
            "the program reads a weak reference to what it reaches by nothing else",
            "a program holds what it relies on, so that the reference would never die",
            "let the code reach the object itself, too, or pass it as an argument; or " + KEEP_EAGER,
        ),
        "context variable": (
            "the program sets a context variable that held nothing",
            "what was set cannot be taken away again, so that each call would find it set",
            "set it before the first call, or give it a default; or " + KEEP_EAGER,
        ),
        "counter": (
            "the program counts in a Python object, and what it does depends on the very number",
            "each number would be another program; one that goes into operators, or is compared, may change freely",
            "count in a registered buffer (self.steps += 1 on a tensor), or outside of the function; or " + KEEP_EAGER,
        ),
        "growing": (
            "the program adds to a Python object, and looks at what is in it",
            "each length would be another program; what is only added to, and not looked at, may grow freely",
            "pass the object's length or content as an argument, keep tensors in a buffer of fixed size, or "
            + KEEP_EAGER,
        ),
        "foreign result": (
            "the program gives an object that cannot be built again",
            "each call gives one with tensors of its own, made as copy.copy makes it",
            "return tensors in a tuple or a dictionary, or let the class be copied by copy.copy",
        ),
        "forgetful": (
            "the program calls a function that remembers its results (functools.lru_cache) with other things each time",
            "it would run in each call, with all that it does beside",
            "call it outside and pass its result as an argument, or do not let it remember; or " + KEEP_EAGER,
        ),
        "registered": (
            "the program puts layers, parameters or hooks in a module, or takes them away, at each call",
            "Python, which would do so, runs only once",
            "do it in __init__, or at the first call alone; or " + KEEP_EAGER,
        ),
        "kept tensor": (
            "the program keeps a tensor that it computed in a Python object",
            "Python runs once per signature, so the object would never see another value",
            "keep it in a dictionary, a list or an attribute (self.last = y), or return it; or " + KEEP_EAGER,
        ),
        "made subclass": (
            "the program makes a parameter, or a tensor of another class, of a tensor that it is given",
            "while Python is traced a tensor stands in for it that has a class of its own",
            "make it outside and pass it as an argument, or use requires_grad_(); or " + KEEP_EAGER,
        ),
        "subclass": (
            "the program is given a tensor subclass",
            "a subclass may give operators another meaning, which tracing would not see",
            "pass plain tensors, or " + KEEP_EAGER,
        ),
        "layout": (
            "the program uses a tensor that is not strided (sparse, quantized or MKL-DNN)",
            "a program's values are dense tensors",
            "convert with to_dense(), make embeddings without sparse=True, or " + KEEP_EAGER,
        ),
        "no shape rule": (
            "an operator cannot say what it returns without running",
            "tracing runs operators on tensors without elements",
            "register a fake implementation (torch.library.register_fake), or " + KEEP_EAGER,
        ),
        "generator": (
            "the program makes or seeds a random generator of its own",
            "a program draws from the generators that it is given, and Python, which would seed them, runs only once",
            "pass the generator as an argument, and seed it outside; torch.manual_seed may be called inside",
        ),
    }
)


def refusal(kind: str, place: Place | None, detail: str = "") -> UnsupportedError:
    """The error for a row of the table; `detail` says which operator or object it was."""
    fact, why, fix = REFUSALS[kind]
    library = library_place()
    if library is not None:
        found = (own for name, reason, own in OF_LIBRARY if reason == why and name in library.filename)
        fix = next(found, fix)
    places = [source_line(known.filename, known.line) for known in (place, library) if known]
    where = "\n".join(places) or None
    return UnsupportedError(f"{fact} ({detail})" if detail else fact, where=where, why=why, fix=fix)


def is_refusal(error: UnsupportedError, kind: str) -> bool:
    """Whether an error is that of a row of the table."""
    return error.fact == REFUSALS[kind][0]


def refuse(kind: str, place: Place | None, detail: str = "") -> NoReturn:
    """Raise the error for a row of the table; code that is traced cannot catch it for good (see `uncaught`)."""
    error = refusal(kind, place, detail)
    note_raised(error)
    raise error


class _Raised(threading.local):
    """The first error that this thread raised into code that it traces, if it traces some."""

    error: Exception | None = None


_RAISED = _Raised()


def note_raised(error: Exception) -> None:
    """Note an error that eager PyTorch may not raise; that an attribute is not there it says too."""
    if not isinstance(error, AttributeError):
        _RAISED.error = _RAISED.error or error


def forgive(error: Exception) -> None:
    """Let an error go that Weft itself has caught, and that traced code never saw."""
    if _RAISED.error is error:
        _RAISED.error = None


@contextmanager
def uncaught() -> Iterator[None]:
    """In this block code is traced: what is raised into it leaves the block, also where the code catches it.

    `try: ... except RuntimeError:` would go on by a way that eager never takes.
    """
    before, _RAISED.error = _RAISED.error, None
    try:
        yield
    except WeftError:
        raise
    except Exception:
        if not isinstance(_RAISED.error, WeftError):
            raise
        raise _RAISED.error from None
    else:
        if isinstance(_RAISED.error, WeftError):
            raise _RAISED.error
        if _RAISED.error is not None:
            raise refusal("caught", place_of(_RAISED.error), type(_RAISED.error).__name__)
    finally:
        _RAISED.error = before


# What a program cannot cause by what it does with stand-ins; raised by a line of Weft it is a mistake in Weft.
MISTAKES = (NameError, AttributeError, AssertionError, KeyError, RecursionError)


def trace_failure(name: str, error: Exception) -> WeftError:
    """The error for a program that runs imperatively but raised this while it was traced."""
    place = place_of(error)
    where = source_line(place.filename, place.line) if place else None
    raised = first_line_of(error)
    if isinstance(error, MISTAKES) and is_raised_by_weft(error):
        return InternalError(
            f"tracing {name} failed with {raised}",
            where=where,
            why="this is a mistake in Weft, not in your program, which runs imperatively",
            fix='please report it; until then use hybridize(..., fallback="eager")',
        )
    return UnsupportedError(
        f"{name} runs imperatively but cannot be traced",
        where=where,
        why=f"on tensors without elements it raised {raised}",
        fix=KEEP_EAGER,
    )


class UnmaterialisedError(UsageError):
    """A program is asked for of a module whose first call has not been made yet."""


def unmaterialised(thing: Any) -> bool:
    """Whether a thing is a tensor whose sizes the first call decides."""
    return isinstance(thing, torch.Tensor) and bool(is_lazy(thing))


def refuse_unmaterialised(name: str) -> UnmaterialisedError:
    """The error for a program of such a module; whoever may run the call imperatively does so instead."""
    return UnmaterialisedError(
        f"{name} has parameters that are not materialised yet",
        why="the first call makes the parameters of lazy modules (nn.LazyLinear, ...), by the sizes of what comes in",
        fix="call it once before, as you would without Weft",
    )


class FirstCallError(UsageError):
    """A program is asked for of code whose first call does what later ones find done."""

    kind = detail = ""  # of the refusal, where it is so at each call

    def refused(self) -> UnsupportedError:
        """The error for code where it is so at each call."""
        return refusal(self.kind, None, self.detail)


def refuse_forgotten(functions: Sequence[str]) -> FirstCallError:
    """The error for a program of code that calls functions which remember their results, and have none yet."""
    error = FirstCallError(
        f"the program calls a function that remembers results and has none yet ({functions[0]}, functools.lru_cache)",
        why="it runs once for each of its arguments, with all that it does beside, and not once in each run",
        fix="call it once before, as you would without Weft",
    )
    error.kind, error.detail = "forgetful", functions[0]
    return error


def refuse_kept_once(path: str) -> FirstCallError:
    """The error for a program of code that keeps a tensor where each run would find another one."""
    error = FirstCallError(
        f"the program keeps a tensor that it made ({path})",
        why="Python, which does so, runs only once, and later calls find the tensor there",
        fix="call it once before, as you would without Weft",
    )
    error.kind, error.detail = "kept tensor", path
    return error


def refuse_registered(path: str) -> FirstCallError:
    """The error for a program of code that changes as it runs what a module consists of."""
    error = FirstCallError(
        f"the program puts a layer, a parameter or a hook in a module, or takes one away ({path})",
        why="Python, which does so, runs only once, and each run would find it done",
        fix="call it once before, as you would without Weft",
    )
    error.kind, error.detail = "registered", path
    return error
