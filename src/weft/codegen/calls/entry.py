"""Write `entry`, the native function that calls of programs go through: compare all that one relies on, then run it.

`entry(self, arguments, count, names)` takes a call's arguments as they come, by position and by name. `self` is a tuple
of a bytes object with the words of a state, and of what keeps the state's tables alive. In this order:

- what the call looks like: names, containers inside of one another, constants, tensors, which of them are one object,
  the modes of the thread; where that is not as expected it gives the object REFUSED, and has done nothing;
- the words that tell that facts hold; where they differ, or where words cannot tell, `checks(leaves)` is called;
- the program, native from end to end, where it is bound, perhaps for sizes like the call's: it makes the results, runs,
  and gives them;
- else `runs(inputs)` is called: the arguments that the program takes, captured tensors, numbers.

Both Python functions get the containers among the arguments too, where the program needs them.
"""

from weft.codegen.calls.known_sizes import find_program, note_run, require_runs
from weft.codegen.calls.moves import Moves, MovingCall
from weft.codegen.calls.native_call import (
    ITEMS_OFFSET,
    NULL,
    RESULT_WORDS,
    SIZE_OFFSET,
    CallWord,
    GuardWord,
    NativeCall,
    ObjectLayout,
)
from weft.codegen.calls.path_walk import GIVE_WORDS, PATH_WALK, Given
from weft.codegen.llvm.module import FunctionWriter, Module, Register, constant
from weft.codegen.threads.layout import TABLE_OFFSET

MODE_WORDS, IDENTITY_WORDS, CONTAINER_WORDS, LOOK_WORDS = 4, 3, 5, 2


def write_entry(module: Module, layout: ObjectLayout) -> str:
    """Write what does it into a module; gives the text of the function that Python calls, to come behind that."""
    _Entry(module.function("entry.body", ["ptr", "ptr", "ptr", "i64", "ptr"]), layout).write()
    return f"""
define ptr @entry(ptr %self, ptr %args, i64 %count, ptr %names) nounwind {{
  %result = alloca ptr
  %place = getelementptr i8, ptr %self, i64 {ITEMS_OFFSET}
  %bytes = load ptr, ptr %place
  %state = getelementptr i8, ptr %bytes, i64 {layout.content}
  call void @entry.body(ptr %state, ptr %args, ptr %result, i64 %count, ptr %names)
  %given = load ptr, ptr %result
  ret ptr %given
}}
"""


class _Entry(NativeCall):
    """Writes `void call(state*, arguments*, result*, count, names*)`."""

    def __init__(self, f: FunctionWriter, layout: ObjectLayout) -> None:
        state, self._arguments, self._result, self._count, self._names = f.parameters
        super().__init__(f, layout, state, f.label("refused"))
        self._checks, self._runs, self._end = f.label("checks"), f.label("runs"), f.label("end")
        self._inputs = f.scratch("ptr", 1)  # the list of inputs, once it is made
        self._given = f.scratch("ptr", 2)  # the arguments of a function of Python
        self._leaf = f.scratch("ptr", 1)  # the last segment that has run

    def write(self) -> None:
        # SAFETY: Python holds the arguments and `self` during the call, and its lock but where it is let go of below.
        # Until then nobody changes containers or tensors, so what is in them needs no references. Classes are compared
        # before anything is read that only they have; a guard's tables are held by the object that is in its list.
        f = self.f
        f.store(NULL, self._inputs)
        items = self._items()
        self._compare_constants(items)
        self._compare_classes(items)
        self._compare_tensors(items)
        self._compare_identities(items)
        self._compare_modes()
        guard, told = self._only_item(CallWord.GUARD), f.label("told")
        f.branch_if(self._is_none(guard), self._checks, told)
        f.begin_block(told)
        facts = NativeCall(f, self.layout, self._words_of(guard), self._checks)
        facts.compare_rows(facts.word("ptr", GuardWord.ROWS), facts.word("i64", GuardWord.ROW_COUNT))
        self._compare_memory(items, facts)
        f.store(f.integer(1), facts.word("ptr", GuardWord.SEEN))
        captured = f.load("ptr", f.offset(guard, "i8", ITEMS_OFFSET + 8))
        bound, whole = self._only_item(CallWord.BOUND), f.label("whole")
        f.branch_if(self._is_none(bound), self._runs, whole)
        f.begin_block(whole)
        self._run_bound(items, captured, self._of_sizes(items, bound))
        f.begin_block(self._runs)
        self._call(CallWord.RUNS, self._inputs_list(items, captured), items)
        f.begin_block(self._checks)
        leaves = self._new_list(self.word("i64", CallWord.LEAF_COUNT))
        self._put_items(leaves, items, self.word("ptr", CallWord.LEAVES), self.word("i64", CallWord.LEAF_COUNT))
        self._call(CallWord.CHECKS, leaves, items)
        f.begin_block(self.refused)
        f.store(self.constant_object(CallWord.REFUSED), self._result)
        f.branch(self._end)
        f.begin_block(self._end)

    # -- what a call looks like ---------------------------------------------------------------------------------

    def _items(self) -> Register:
        """Give where the arguments are in a row, and behind them what is in containers of one another."""
        f, names = self.f, self._names
        count, named = self.word("i64", CallWord.POSITIONAL_COUNT), self.word("i64", CallWord.NAME_COUNT)
        self.require(f.compare("icmp eq", self._count, count))
        has_none = f.compare("icmp eq", names, NULL)
        size = f.offset(names, "i8", SIZE_OFFSET)
        (given,) = f.either(has_none, lambda: (f.integer(0),), lambda: (f.load("i64", size),))
        self.require(f.compare("icmp eq", given, named))
        expected = self.word("ptr", CallWord.NAMES)
        with f.loop(0, named) as loop:
            name = f.load("ptr", f.offset(f.offset(names, "i8", ITEMS_OFFSET), "ptr", loop.index))
            self.require(f.compare("icmp eq", name, f.load("ptr", f.offset(expected, "ptr", loop.index))))
        items = f.emit("ptr", f"alloca ptr, {self.word('i64', CallWord.ITEM_COUNT)}")
        with f.loop(0, f.binary("add", count, named)) as loop:
            f.store(f.load("ptr", f.offset(self._arguments, "ptr", loop.index)), f.offset(items, "ptr", loop.index))
        self._open_containers(items)
        return items

    def _open_containers(self, items: Register) -> None:
        f, table, place = self.f, self.word("ptr", CallWord.CONTAINERS), self.f.scratch("ptr", 3)
        with f.loop(0, self.word("i64", CallWord.CONTAINER_COUNT)) as loop:
            index, kind, size, first, keys = self.row(table, loop.index, CONTAINER_WORDS)
            item = f.load("ptr", f.offset(items, "ptr", index))
            kind = f.emit("ptr", f"inttoptr {kind} to ptr")
            self.require(f.compare("icmp eq", self.kind_of(item), kind))
            inside = f.offset(items, "ptr", first)

            def of_dictionary(item: Register = item, size: Register = size, to: Register = inside) -> tuple[()]:
                self._open_dictionary((item, to), size, f.emit("ptr", f"inttoptr {keys} to ptr"), place)
                return ()

            def of_row(item: Register = item, size: Register = size, to: Register = inside) -> tuple[()]:
                self.require(f.compare("icmp eq", f.load("i64", f.offset(item, "i8", SIZE_OFFSET)), size))
                is_list = f.compare("icmp eq", kind, self.word("ptr", CallWord.LIST_TYPE))
                begin = self.first_item(item, is_list)
                with f.loop(0, size) as each:
                    f.store(f.load("ptr", f.offset(begin, "ptr", each.index)), f.offset(to, "ptr", each.index))
                return ()

            f.either(f.compare("icmp ne", keys, f.integer(0)), of_dictionary, of_row)

    def _open_dictionary(
        self, item_and_place: tuple[Register, Register], size: Register, keys: Register, room: Register
    ) -> None:
        f, (item, to) = self.f, item_and_place
        found = f.emit("i64", f"call i64 {self.word('ptr', CallWord.DICTIONARY_SIZE).name}({item})")
        self.require(f.compare("icmp eq", found, size))
        key, value = f.offset(room, "ptr", 1), f.offset(room, "ptr", 2)
        f.store(f.integer(0), room)
        with f.loop(0, size) as each:
            following = self.word("ptr", CallWord.DICTIONARY_NEXT)
            there = f.emit("i32", f"call i32 {following.name}({item}, {room}, {key}, {value})")
            self.require(f.compare("icmp ne", there, constant("i32", 0)))
            expected = f.load("ptr", f.offset(keys, "ptr", each.index))
            self.require(f.compare("icmp eq", f.load("ptr", key), expected))
            f.store(f.load("ptr", value), f.offset(to, "ptr", each.index))

    def _compare_constants(self, items: Register) -> None:
        f, table = self.f, self.word("ptr", CallWord.CONSTANTS)
        with f.loop(0, self.word("i64", CallWord.CONSTANT_COUNT)) as loop:
            index, expected = self.row(table, loop.index, 2)
            self.require(f.compare("icmp eq", f.load("i64", f.offset(items, "ptr", index)), expected))

    def _compare_classes(self, items: Register) -> None:
        f, table = self.f, self.word("ptr", CallWord.OF_CLASS)
        with f.loop(0, self.word("i64", CallWord.OF_CLASS_COUNT)) as loop:
            index, kind = self.row(table, loop.index, 2)
            item = f.load("ptr", f.offset(items, "ptr", index))
            self.require(f.compare("icmp eq", self.kind_of(item), f.emit("ptr", f"inttoptr {kind} to ptr")))

    def _compare_tensors(self, items: Register) -> None:
        """Require that each tensor is of the class, and of the look, that it had."""
        f, table, masks = self.f, self.word("ptr", CallWord.TENSORS), self.word("ptr", CallWord.MASKS)
        looks, count = self.word("ptr", CallWord.LOOKS), self.word("i64", CallWord.MASK_COUNT)
        grads = self.word("ptr", CallWord.GRADS)
        with f.loop(0, self.word("i64", CallWord.TENSOR_COUNT)) as loop:
            index, kind = self.row(table, loop.index, 2)
            item = f.load("ptr", f.offset(items, "ptr", index))
            self.require(f.compare("icmp eq", self.kind_of(item), f.emit("ptr", f"inttoptr {kind} to ptr")))
            tensor = f.load("ptr", f.offset(item, "i8", self.layout.tensor))
            own = f.offset(looks, "i64", f.multiply(f.binary("mul", loop.index, count), LOOK_WORDS))
            with f.loop(0, count) as inner:
                at = f.load("i64", f.offset(masks, "i64", inner.index))
                bits, expected = self.row(own, inner.index, LOOK_WORDS)
                found = f.binary("and", f.load("i64", f.offset(tensor, "i8", at)), bits)
                self.require(f.compare("icmp eq", found, expected))
            grad = f.load("i64", f.offset(grads, "i64", loop.index))
            self.require(f.compare("icmp eq", self._grad_code(tensor), grad))

    def _grad_code(self, tensor: Register) -> Register:
        """Tell whether a tensor requires grad, and how, as `memory_layout.grad_code` does."""
        f = self.f
        known = f.load("ptr", f.offset(tensor, "i8", self.word("i64", CallWord.GRAD_KNOWN)))
        zero = f.integer(0)

        def of_view() -> tuple[Register]:
            self.require(f.compare("icmp eq", f.load("i64", known), self.word("i64", CallWord.VIEW_KIND)))
            self.require(f.compare("icmp eq", self._own_grad_code(known), zero))
            base = f.load("ptr", f.offset(known, "i8", self.word("i64", CallWord.VIEW_BASE)))
            of_base = f.load("ptr", f.offset(base, "i8", self.word("i64", CallWord.GRAD_KNOWN)))
            with f.only_if(f.compare("icmp ne", of_base, NULL)):
                self.require(f.compare("icmp eq", f.load("i64", of_base), self.word("i64", CallWord.GRAD_KIND)))
                self.require(f.compare("icmp eq", self._own_grad_code(of_base), zero))
            return (zero,)

        def of_known() -> tuple[Register]:
            is_plain = f.compare("icmp eq", f.load("i64", known), self.word("i64", CallWord.GRAD_KIND))
            (code,) = f.either(is_plain, lambda: (self._own_grad_code(known),), of_view)
            return (code,)

        (code,) = f.either(f.compare("icmp ne", known, NULL), of_known, lambda: (zero,))
        return code

    def _own_grad_code(self, known: Register) -> Register:
        """Tell the same from what autograd knows of a tensor by itself."""
        f, rest = self.f, self.word("ptr", CallWord.REST)
        with f.loop(0, self.word("i64", CallWord.REST_COUNT)) as loop:
            place = f.offset(known, "i8", f.load("i64", f.offset(rest, "i64", loop.index)))
            self.require(f.compare("icmp eq", f.load("i64", place), f.integer(0)))
        function = f.load("i64", f.offset(known, "i8", self.word("i64", CallWord.GRAD_FUNCTION)))
        flag = f.load("i8", f.offset(known, "i8", self.word("i64", CallWord.GRAD_REQUIRES)))
        is_computed = f.compare("icmp ne", function, f.integer(0))
        return f.select(is_computed, f.integer(2), f.convert("zext", flag, "i64"))

    def _compare_identities(self, items: Register) -> None:
        """Require that the same ones are one object."""
        f, pairs = self.f, self.word("ptr", CallWord.IDENTITIES)
        with f.loop(0, self.word("i64", CallWord.IDENTITY_COUNT)) as loop:
            one, other, expected = self.row(pairs, loop.index, IDENTITY_WORDS)
            things = [f.load("ptr", f.offset(items, "ptr", place)) for place in (one, other)]
            found = f.convert("zext", f.compare("icmp eq", *things), "i64")
            self.require(f.compare("icmp eq", found, expected))

    def _compare_modes(self) -> None:
        f, table = self.f, self.word("ptr", CallWord.MODES)
        with f.loop(0, self.word("i64", CallWord.MODE_COUNT)) as loop:
            address, number, bits, expected = self.row(table, loop.index, MODE_WORDS)
            ask = f.emit("ptr", f"inttoptr {address} to ptr")
            answer = f.emit("i64", f"call i64 {ask.name}({number})")
            self.require(f.compare("icmp eq", f.binary("and", answer, bits), expected))

    def _compare_memory(self, items: Register, facts: NativeCall) -> None:
        """Require that some arguments share no memory, neither with each other nor with captured tensors."""
        f, table = self.f, self.word("ptr", CallWord.APART)
        foreign, count = facts.word("ptr", GuardWord.FOREIGN), facts.word("i64", GuardWord.FOREIGN_COUNT)
        with f.loop(0, self.word("i64", CallWord.APART_COUNT)) as loop:
            mine = self._memory_at(items, table, loop.index)
            with f.loop(0, count) as other:
                theirs = f.load("i64", f.offset(foreign, "i64", other.index))
                facts.require(f.compare("icmp ne", mine, theirs))
            with f.loop(0, loop.index) as other:
                facts.require(f.compare("icmp ne", mine, self._memory_at(items, table, other.index)))

    def _memory_at(self, items: Register, table: Register, number: Register) -> Register:
        """Give where the memory begins that a tensor among the items is in."""
        f, layout = self.f, self.layout
        item = f.load("ptr", f.offset(items, "ptr", f.load("i64", f.offset(table, "i64", number))))
        tensor = f.load("ptr", f.offset(item, "i8", layout.tensor))
        storage = f.load("ptr", f.offset(tensor, "i8", layout.storage))
        return f.load("i64", f.offset(storage, "i8", layout.address))

    # -- what is done with it -----------------------------------------------------------------------------------

    def _of_sizes(self, items: Register, bound: Register) -> Register:
        """Give the bound program, which is that for the sizes of the call where there is a table of such."""
        # SAFETY: Python's lock is held from here to where the program is, and writes of the table need it, too.
        f = self.f

        def of_table() -> tuple[Register]:
            found = find_program(NativeCall(f, self.layout, self._words_of(bound), self._runs), items)
            require_runs(NativeCall(f, self.layout, self._words_of(found), self._runs))
            return (found,)

        has_table = f.compare("icmp ne", self.word("i64", CallWord.BY_SIZES), f.integer(0))
        (program,) = f.either(has_table, of_table, lambda: (bound,))
        return program

    def _run_bound(self, items: Register, captured: Register, bound: Register) -> None:
        """Run a bound program, native from end to end; where it is not current, or busy, Python's function runs."""
        # SAFETY: a reference holds the bound program, and that its tables, captured tensors, code and frame; the frame,
        # and the room for what is made, are this call's alone between the two exchanges. Items in containers are held
        # by the list of inputs, others by who calls. The lock is let go of only after all that: the guard may end then.
        f = self.f
        program = _Bound(f, self.layout, self._words_of(bound), self._runs)
        program.require(f.compare("icmp eq", captured, program.word("ptr", CallWord.CAPTURED)))
        program.compare_rows(program.word("ptr", CallWord.ROWS), program.word("i64", CallWord.ROW_COUNT))
        self.add_reference(bound)  # before anything is made: that may run Python, which may put others in its place
        self._hold_inputs(items, captured, program)
        busy, unmade, late, lost, over = map(f.label, ("busy", "unmade", "late", "lost", "over"))
        free = program.take_frame(busy)
        frame = f.emit("ptr", f"inttoptr {free} to ptr")
        self._walk(program, (frame, free), (items, captured, bound))
        results, moves = program.fill(frame, items, captured)
        NativeCall(f, self.layout, program.state, late).require(program.passes_checks(frame))
        # Memory is taken while others run Python: for many results that is as long as a small program.
        thread = self.release_lock()
        number = program.make_results(results, unmade)
        program.compute(frame, moves)
        self.take_lock(thread)
        program.wrap_results()
        program.give_results(lost, self._result)
        f.branch(over)
        f.begin_block(unmade)
        program.each_made(number, CallWord.DELETE)
        self.take_lock(thread)
        f.branch(late)
        f.begin_block(busy)
        self.drop_reference(bound)
        f.branch(self._runs)
        f.begin_block(late)
        self._leave(program, free, (items, captured, bound))
        f.begin_block(lost)  # Python has said why
        program.each_made(program.word("i64", CallWord.OUTPUT_COUNT), CallWord.DROP_REFERENCE)
        f.store(NULL, self._result)
        f.branch(over)
        f.begin_block(over)
        program.give_back(free)
        self._finish(program)
        self.drop_reference(bound)
        self._drop_inputs()

    def _walk(
        self,
        program: "_Bound",
        frame_and_free: tuple[Register, Register],
        call: tuple[Register, Register, Register],
    ) -> None:
        """Run a bound program of segments, and end; go on with one that is no such."""
        # SAFETY: as above. Handles are this call's alone, too; each is deleted, and its place 0 again, before the frame
        # is given back.
        f, (frame, free), (items, captured, bound) = self.f, frame_and_free, call
        walks, reached, unwalked, once = map(f.label, ("walks", "reached", "unwalked", "once"))
        lost, over = f.label("lost"), f.label("over")
        f.branch_if(f.compare("icmp ne", program.word("i64", CallWord.FIRST), f.integer(0)), walks, once)
        f.begin_block(walks)
        program.fill_places(program.word("ptr", CallWord.VALUES), items, captured)
        thread = self.release_lock()
        f.call(PATH_WALK, [program.state, frame, self._leaf])
        self.take_lock(thread)
        f.branch_if(f.compare("icmp ne", f.load("ptr", self._leaf), NULL), reached, unwalked)
        f.begin_block(reached)
        last = _Bound(f, self.layout, f.load("ptr", self._leaf), self._runs)
        last.wrap_given(program)
        program.delete_handles()
        last.give_results(lost, self._result, CallWord.GIVE_COUNT)
        f.branch(over)
        f.begin_block(unwalked)
        program.delete_handles()
        self._leave(program, free, (items, captured, bound))
        f.begin_block(lost)  # Python has said why
        last.each_made(last.word("i64", CallWord.GIVE_COUNT), CallWord.DROP_REFERENCE)
        f.store(NULL, self._result)
        f.branch(over)
        f.begin_block(over)
        program.give_back(free)
        self._finish(last)
        self.drop_reference(bound)
        self._drop_inputs()
        f.begin_block(once)

    def _leave(self, program: "_Bound", free: Register, call: tuple[Register, Register, Register]) -> None:
        """Let Python's function run the call instead."""
        items, captured, bound = call
        program.give_back(free)
        self.f.store(self._inputs_list(items, captured), self._inputs)  # while the program holds captured tensors
        self.drop_reference(bound)
        self.f.branch(self._runs)

    def _hold_inputs(self, items: Register, captured: Register, program: NativeCall) -> None:
        """Make the list of inputs where nobody else holds what is in it, or Python takes it in the end."""
        f = self.f
        held = f.compare("icmp ne", self.word("i64", CallWord.CONTAINER_COUNT), f.integer(0))
        finishes = f.compare("icmp ne", program.word("i64", CallWord.FINISH), f.integer(0))
        with f.only_if(f.binary("or", held, finishes)):
            f.store(self._new_inputs(items, captured), self._inputs)

    def _finish(self, program: NativeCall) -> None:
        """Give what Python makes of the row of results, where it is to see that, and of the list of inputs."""
        f, function = self.f, program.word("ptr", CallWord.FINISH)
        row = f.load("ptr", self._result)
        is_there = f.compare("icmp ne", row, NULL)
        with f.only_if(f.binary("and", is_there, f.compare("icmp ne", function, NULL))):
            f.store(row, self._given)
            f.store(f.load("ptr", self._inputs), f.offset(self._given, "ptr", 1))
            call = self.word("ptr", CallWord.VECTORCALL)
            found = f.emit("ptr", f"call ptr {call.name}({function}, {self._given}, {f.integer(2)}, ptr null)")
            self.drop_reference(row)
            f.store(found, self._result)

    def _drop_inputs(self) -> None:
        """Let go of the list of inputs where it was made, and end."""
        f = self.f
        held = f.load("ptr", self._inputs)
        with f.only_if(f.compare("icmp ne", held, NULL)):
            self.drop_reference(held)
        f.branch(self._end)

    def _inputs_list(self, items: Register, captured: Register) -> Register:
        f = self.f
        found = f.load("ptr", self._inputs)
        is_there = f.compare("icmp ne", found, NULL)
        (inputs,) = f.either(is_there, lambda: (found,), lambda: (self._new_inputs(items, captured),))
        return inputs

    def _new_inputs(self, items: Register, captured: Register) -> Register:
        f, table = self.f, self.word("ptr", CallWord.INPUTS)
        before, after = self.word("i64", CallWord.BEFORE_COUNT), self.word("i64", CallWord.AFTER_COUNT)
        count = f.load("i64", f.offset(captured, "i8", SIZE_OFFSET))
        made = self._new_list(f.binary("add", f.binary("add", before, after), count))
        self._put_items(made, items, table, before)
        inside = f.load("ptr", f.offset(made, "i8", ITEMS_OFFSET))
        with f.loop(0, count) as loop:
            thing = f.load("ptr", f.offset(f.offset(captured, "i8", ITEMS_OFFSET), "ptr", loop.index))
            self.add_reference(thing)
            f.store(thing, f.offset(inside, "ptr", f.binary("add", before, loop.index)))
        first = f.binary("add", before, count)
        self._put_items(made, items, f.offset(table, "i64", before), after, first)
        return made

    def _new_list(self, count: Register) -> Register:
        """Make a list of so many items; where there is no memory the call ends, as Python has said why."""
        f, on, none = self.f, self.f.label("on"), self.f.label("none")
        made = f.emit("ptr", f"call ptr {self.word('ptr', CallWord.NEW_LIST).name}({count})")
        f.branch_if(f.compare("icmp ne", made, NULL), on, none)
        f.begin_block(none)
        f.store(NULL, self._result)
        f.branch(self._end)
        f.begin_block(on)
        return made

    def _put_items(
        self, made: Register, items: Register, table: Register, count: Register, first: Register | None = None
    ) -> None:
        """Put items into a new list, which nobody sees before it is full: nothing here can run Python."""
        f = self.f
        inside = f.load("ptr", f.offset(made, "i8", ITEMS_OFFSET))
        with f.loop(0, count) as loop:
            thing = f.load("ptr", f.offset(items, "ptr", f.load("i64", f.offset(table, "i64", loop.index))))
            self.add_reference(thing)
            at = loop.index if first is None else f.binary("add", first, loop.index)
            f.store(thing, f.offset(inside, "ptr", at))

    def _call(self, function: CallWord, row: Register, items: Register) -> None:
        """Give what a function of Python makes of a list, and of the containers of the call if it needs them."""
        f = self.f
        f.store(row, self._given)
        count = self.word("i64", CallWord.GIVEN_COUNT)
        needs = f.compare("icmp ne", count, f.integer(0))

        def containers() -> tuple[Register]:
            made = self._new_list(count)
            self._put_items(made, items, self.word("ptr", CallWord.GIVEN), count)
            f.store(made, f.offset(self._given, "ptr", 1))
            return (made,)

        (given,) = f.either(needs, containers, lambda: (NULL,))
        number = f.add(f.convert("zext", needs, "i64"), 1)
        call = self.word("ptr", CallWord.VECTORCALL)
        found = f.emit("ptr", f"call ptr {call.name}({self.word('ptr', function)}, {self._given}, {number}, ptr null)")
        self.drop_reference(row)
        with f.only_if(needs):
            self.drop_reference(given)
        f.store(found, self._result)
        f.branch(self._end)

    def _only_item(self, place: CallWord) -> Register:
        """Give what is in a list of one."""
        return self.f.load("ptr", self.f.load("ptr", self.f.offset(self.word("ptr", place), "i8", ITEMS_OFFSET)))

    def _is_none(self, thing: Register) -> Register:
        return self.f.compare("icmp eq", thing, self.word("ptr", CallWord.NONE))

    def _words_of(self, thing: Register) -> Register:
        """Give the words of a tuple that begins with a bytes object."""
        return self.f.offset(self.f.load("ptr", self.f.offset(thing, "i8", ITEMS_OFFSET)), "i8", self.layout.content)


class _Bound(MovingCall):
    """Writes what a bound program does: it takes a frame and fills it, makes results, and gives them."""

    def take_frame(self, busy: str) -> Register:
        """Take the frame, if nobody else has it, for one more run."""
        f = self.f
        free = f.emit("i64", f"atomicrmw xchg {self.word('ptr', CallWord.FRAME)}, i64 0 acquire")
        NativeCall(f, self.layout, self.state, busy).require(f.compare("icmp ne", free, f.integer(0)))
        note_run(self)
        return free

    def give_back(self, free: Register) -> None:
        """Let others have the frame."""
        self.f.emit_void(f"store atomic {free}, {self.word('ptr', CallWord.FRAME)} release, align 8")

    def fill(self, frame: Register, items: Register, captured: Register) -> tuple[Register, Moves]:
        """Write the addresses of arguments and of what lasts into the frame's table, and move what is to be.

        Gives where the addresses of the results go, and the moves.
        """
        f = self.f
        table = f.offset(frame, "i8", TABLE_OFFSET)
        self.fill_places(table, items, captured)
        results = f.offset(table, "ptr", self.word("i64", CallWord.CHANGING_COUNT))
        self.copy_lasting(f.offset(results, "ptr", self.word("i64", CallWord.OUTPUT_COUNT)))
        moves = self.moves_at(self.word("ptr", CallWord.MOVES))
        self.move_inwards(frame, moves)
        return results, moves

    def compute(self, frame: Register, moves: Moves) -> None:
        """Run the program, whose results have been made; Python's lock is somebody else's."""
        self.redirect_results(frame, moves)
        self.run_without_lock(frame)
        self.move_outwards(frame, moves)

    def fill_places(self, table: Register, items: Register, captured: Register) -> None:
        """Write the addresses of arguments, and of what it has itself, into a table."""
        f, rows = self.f, self.word("ptr", CallWord.CHANGING)
        with f.loop(0, self.word("i64", CallWord.CHANGING_COUNT)) as loop:
            position, size = self.row(rows, loop.index, 2)

            def of_tensor(position: Register = position, size: Register = size) -> tuple[Register]:
                is_given = f.compare("icmp sge", position, f.integer(0))
                given = f.offset(items, "ptr", position)
                own = f.offset(f.offset(captured, "i8", ITEMS_OFFSET), "ptr", f.binary("sub", f.integer(-1), position))
                item = f.load("ptr", f.select(is_given, given, own))
                return (self.memory_of(f.load("ptr", f.offset(item, "i8", self.layout.tensor)), size),)

            def fixed(position: Register = position) -> tuple[Register]:
                return (f.emit("ptr", f"inttoptr {position} to ptr"),)

            (address,) = f.either(f.compare("icmp ne", size, f.integer(0)), of_tensor, fixed)
            f.store(address, f.offset(table, "ptr", loop.index))

    def make_results(self, addresses: Register, failed: str) -> Register:
        """Make the tensors that are returned, and write where their memory is; gives how many there are by then."""
        f, table, made = self.f, self.word("ptr", CallWord.RESULTS), self.word("ptr", CallWord.MADE)
        maker = NativeCall(f, self.layout, self.state, failed)
        with f.loop(0, self.word("i64", CallWord.OUTPUT_COUNT)) as loop:
            words = self.row(table, loop.index, RESULT_WORDS)
            memory = maker.new_tensor(words, f.offset(made, "ptr", loop.index), self.word("ptr", CallWord.EMPTY))
            f.store(memory, f.offset(addresses, "ptr", loop.index))
        return loop.index

    def wrap_results(self) -> None:
        """Put each tensor's object in the place of its handle; null where Python had no memory for it."""
        f, made = self.f, self.word("ptr", CallWord.MADE)
        with f.loop(0, self.word("i64", CallWord.OUTPUT_COUNT)) as loop:
            place = f.offset(made, "ptr", loop.index)
            handle = f.load("ptr", place)
            f.store(f.emit("ptr", f"call ptr {self.word('ptr', CallWord.WRAP).name}({handle})"), place)
            f.emit("i32", f"call i32 {self.word('ptr', CallWord.DELETE).name}({handle})")

    def wrap_given(self, program: NativeCall) -> None:
        """Put what the last segment of a walk gives, of tensors and numbers that it and others have made, in a row."""
        f, made, rows = self.f, self.word("ptr", CallWord.MADE), self.word("ptr", CallWord.GIVES)
        handles, values = program.word("ptr", CallWord.HANDLES), program.word("ptr", CallWord.VALUES)
        with f.loop(0, self.word("i64", CallWord.GIVE_COUNT)) as loop:
            place, kind = self.row(rows, loop.index, GIVE_WORDS)
            word = f.offset(values, "i64", place)

            def tensor(place: Register = place) -> tuple[Register]:
                handle = f.load("ptr", f.offset(handles, "ptr", place))
                return (f.emit("ptr", f"call ptr {program.word('ptr', CallWord.WRAP).name}({handle})"),)

            def whole(word: Register = word) -> tuple[Register]:
                bits = f.load("i64", word)
                return (f.emit("ptr", f"call ptr {program.word('ptr', CallWord.NEW_INT).name}({bits})"),)

            def real(word: Register = word) -> tuple[Register]:
                number = f.load("double", word)
                return (f.emit("ptr", f"call ptr {program.word('ptr', CallWord.NEW_FLOAT).name}({number})"),)

            def number(kind: Register = kind) -> tuple[Register, ...]:
                return f.either(f.compare("icmp eq", kind, f.integer(Given.INT)), whole, real)

            (thing,) = f.either(f.compare("icmp eq", kind, f.integer(Given.TENSOR)), tensor, number)
            f.store(thing, f.offset(made, "ptr", loop.index))

    def delete_handles(self) -> None:
        """Let go of the tensors that a walk has made: what is given out Python holds."""
        f, handles = self.f, self.word("ptr", CallWord.HANDLES)
        with f.loop(0, self.word("i64", CallWord.PLACE_COUNT)) as loop:
            place = f.offset(handles, "ptr", loop.index)
            handle = f.load("ptr", place)
            with f.only_if(self._is_there(handle)):
                f.emit("i32", f"call i32 {self.word('ptr', CallWord.DELETE).name}({handle})")
                f.store(NULL, place)

    def give_results(self, lost: str, result: Register, counted: CallWord = CallWord.OUTPUT_COUNT) -> None:
        """Give the one tensor, or a list or tuple of all."""
        f, made, count = self.f, self.word("ptr", CallWord.MADE), self.word("i64", counted)
        with f.loop(0, count) as loop:
            on = f.label("on")
            f.branch_if(self._is_there(f.load("ptr", f.offset(made, "ptr", loop.index))), on, lost)
            f.begin_block(on)
        make = self.word("ptr", CallWord.NEW_ROW)

        def alone() -> tuple[Register]:
            return (f.load("ptr", made),)

        def in_row() -> tuple[Register]:
            row = f.emit("ptr", f"call ptr {make.name}({count})")
            on = f.label("on")
            f.branch_if(self._is_there(row), on, lost)
            f.begin_block(on)
            # Nobody else sees the row before it is full: nothing from here on can run Python.
            items = self.items_of(row)
            with f.loop(0, count) as loop:
                item = f.load("ptr", f.offset(made, "ptr", loop.index))
                f.store(item, f.offset(items, "ptr", loop.index))
            return (row,)

        (given,) = f.either(self._is_there(make), in_row, alone)
        f.store(given, result)

    def each_made(self, count: Register, function: CallWord) -> None:
        """Call a function for each of the first things that were made; null is none."""
        f, made = self.f, self.word("ptr", CallWord.MADE)
        with f.loop(0, count) as loop:
            thing = f.load("ptr", f.offset(made, "ptr", loop.index))
            f.emit("i32", f"call i32 {self.word('ptr', function).name}({thing})")

    def _is_there(self, pointer: Register) -> Register:
        return self.f.compare("icmp ne", pointer, NULL)
