"""Write a plan as a C library: object code, and the C source and header through which other programs call it.

The plan runs on the thread of its caller. What it needs besides its arguments, weights and constants, lies in one file
of data that the library reads once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from string import Template

from weft.codegen.objects.compiler import object_code
from weft.codegen.packing import ALIGNMENT, PackingChain
from weft.codegen.plan_module import SERIAL, PlanModule, emit_plan
from weft.codegen.threads.layout import Frame
from weft.plan.form.plan import Plan
from weft.target import Target

C_TYPES = {
    "f32": "float", "f64": "double", "f16": "uint16_t", "bf16": "uint16_t", "bool": "uint8_t",
    "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t",
    "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t",
}  # fmt: skip
FUNCTION = re.compile(r"^define void (@(\S+)\()", re.MULTILINE)
ENTRIES = re.compile(rf"{SERIAL}|pack_\d+")


@dataclass(frozen=True, slots=True)
class CParameter:
    """An argument or a result of the C function: its name, the dtype of its elements, its bytes, and how it lies."""

    name: str
    dtype: str
    bytes: int
    layout: str


@dataclass(frozen=True, slots=True)
class Interface:
    """What the C function is called and takes: `arguments` and `data` are the plan's inputs, by index.

    `data` are inputs that lie in the file of data, in this order; the plan's constants follow them there.
    """

    name: str
    title: str
    arguments: dict[int, CParameter]
    data: tuple[int, ...]
    results: tuple[CParameter, ...]


@dataclass(frozen=True, slots=True)
class CLibrary:
    """The files of a library, by what they are; where each tensor begins in the data, and how long that is."""

    code: bytes
    header: str
    source: str
    test: str
    data_offsets: tuple[int, ...]
    data_bytes: int


def c_library(plan: Plan, interface: Interface, target: Target) -> CLibrary:
    """Write the library of a plan that has a place for everything and no lanes."""
    module = emit_plan(plan, target)
    inputs = {buffer.index: number for number, buffer in plan.of_kind("input")}
    stored = [inputs[index] for index in interface.data] + [number for number, _ in plan.of_kind("constant")]
    data_offsets, data_bytes = _offsets([plan.buffers[number].bytes for number in stored])
    packed = [number for number, _ in plan.of_kind("packed")]
    packed_offsets, packed_bytes = _offsets([plan.buffers[number].bytes for number in packed])
    places = {number: f"self->data + {offset}" for number, offset in zip(stored, data_offsets, strict=True)}
    places |= {number: f"self->packed + {offset}" for number, offset in zip(packed, packed_offsets, strict=True)}
    scratch = _scratch_bytes(plan, module.chains)
    fields = {
        "name": interface.name,
        "upper": interface.name.upper(),
        "title": interface.title,
        "processor": f"{target.triple}, {target.cpu}" if target.cpu else target.triple,
        "parameters": _parameters(interface),
        "layouts": "\n".join(f" *   {port.name}: {port.layout}" for port in _ports(interface)),
        "declarations": "\n".join(
            f"void {interface.name}_pack_{number}(void *table);" for number in range(len(module.chains))
        ),
        "frame_bytes": module.frame.bytes,
        "data_bytes": data_bytes,
        "packed_bytes": packed_bytes,
        "scratch_bytes": scratch,
        "fixed": _assignments(module.frame, places),
        "packing": "\n".join(
            _packing(plan, interface.name, number, chain, places) for number, chain in enumerate(module.chains)
        ),
        "changing": _assignments(module.frame, _given(plan, interface)),
        **_test_fields(interface),
    }
    return CLibrary(
        object_code(_named(module, interface.name), target),
        HEADER.substitute(fields),
        SOURCE.substitute(fields),
        TEST.substitute(fields),
        data_offsets,
        data_bytes,
    )


def _named(module: PlanModule, name: str) -> str:
    """The module with the names of this library: its entries begin with its name, all else is its own affair."""

    def rename(found: re.Match[str]) -> str:
        if ENTRIES.fullmatch(found[2]):
            return f"define void @{name}_{found[2]}("
        return f"define internal void {found[1]}"

    return FUNCTION.sub(rename, module.text)


def _ports(interface: Interface) -> list[CParameter]:
    return [*interface.arguments.values(), *interface.results]


def _parameters(interface: Interface) -> str:
    given = [f"const {C_TYPES[port.dtype]} *{port.name}" for port in interface.arguments.values()]
    return ", ".join(["", *given, *(f"{C_TYPES[port.dtype]} *{port.name}" for port in interface.results)])


def _given(plan: Plan, interface: Interface) -> dict[int, str]:
    """Where a call's arguments and results are, by buffer."""
    inputs = {buffer.index: number for number, buffer in plan.of_kind("input")}
    outputs = {buffer.index: number for number, buffer in plan.of_kind("output")}
    return {inputs[index]: port.name for index, port in interface.arguments.items()} | {
        outputs[index]: port.name for index, port in enumerate(interface.results)
    }


def _assignments(frame: Frame, places: dict[int, str]) -> str:
    rows = sorted((frame.slots[buffer], place) for buffer, place in places.items())
    offset = {slot: frame.slot_offset(buffer) for buffer, slot in frame.slots.items()}
    return "\n".join(f"    set(self->frame + {offset[slot]}, {place});" for slot, place in rows)


def _packing(plan: Plan, name: str, number: int, chain: PackingChain, places: dict[int, str]) -> str:
    offsets, _ = _offsets([plan.buffers[buffer].bytes for buffer in chain.scratch])
    own = {buffer: f"scratch + {offset}" for buffer, offset in zip(chain.scratch, offsets, strict=True)}
    listed = ", ".join((places | own)[buffer] for buffer in chain.table)
    return f"    {{\n        void *table[] = {{{listed}}};\n        {name}_pack_{number}(table);\n    }}"


def _scratch_bytes(plan: Plan, chains: Sequence[PackingChain]) -> int:
    return max((_offsets([plan.buffers[buffer].bytes for buffer in chain.scratch])[1] for chain in chains), default=0)


def _offsets(sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Lay pieces one after another, each where a vector may begin."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return tuple(offsets), end


def _test_fields(interface: Interface) -> dict[str, str]:
    arguments, results = list(interface.arguments.values()), interface.results
    return {
        "test_buffers": "\n".join(f"    void *{port.name} = room({port.bytes});" for port in _ports(interface)),
        "test_expected": "\n".join(f"    void *{port.name}_expected = room({port.bytes});" for port in results),
        "test_reads": "\n".join(
            [f"    take(file, {port.name}, {port.bytes});" for port in arguments]
            + [f"    take(file, {port.name}_expected, {port.bytes});" for port in results]
        ),
        "test_arguments": ", ".join(["", *(port.name for port in _ports(interface))]),
        "test_checks": "\n".join(
            f'    wrong += differs("{port.name}", {port.name}, {port.name}_expected, {port.bytes});' for port in results
        ),
    }


# The files, with places for what differs from one program to another.
HEADER = Template("""\
/* $title, made by Weft for $processor.
 *
 * Elements lie as said here; no argument may overlap a result.
$layouts
 */
#ifndef WEFT_${upper}_H
#define WEFT_${upper}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct $name $name;

/* Reads the weights; NULL if the file is not there, is not of this library, or memory is short. */
$name *${name}_load(const char *data_file);

/* Computes on the calling thread. Threads that compute at once need an instance each. */
void ${name}_run($name *self$parameters);

void ${name}_free($name *self);

#ifdef __cplusplus
}
#endif

#endif
""")

SOURCE = Template("""\
/* $title, made by Weft: how the machine code beside this file is called. */
#define _POSIX_C_SOURCE 200112L
#include "$name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t FRAME_BYTES = $frame_bytes, DATA_BYTES = $data_bytes, PACKED_BYTES = $packed_bytes,
                    SCRATCH_BYTES = $scratch_bytes;

struct $name {
    unsigned char *frame, *data, *packed;
};

void ${name}_serial(void *frame);
$declarations

static unsigned char *room(size_t bytes)
{
    void *found = NULL;
    return posix_memalign(&found, 4096, bytes ? bytes : 1) ? NULL : found;
}

static void set(unsigned char *slot, const void *address)
{
    memcpy(slot, &address, sizeof address);
}

static int read_data(const char *path, unsigned char *data)
{
    FILE *file = fopen(path, "rb");
    int right = file && fread(data, 1, DATA_BYTES, file) == DATA_BYTES && fgetc(file) == EOF;
    if (file)
        fclose(file);
    return right;
}

static void prepare($name *self, unsigned char *scratch)
{
    (void)scratch;
$fixed
$packing
}

$name *${name}_load(const char *data_file)
{
    unsigned char *scratch = room(SCRATCH_BYTES);
    $name *self = calloc(1, sizeof *self);
    if (self) {
        self->frame = room(FRAME_BYTES);
        self->data = room(DATA_BYTES);
        self->packed = room(PACKED_BYTES);
    }
    if (!self || !scratch || !self->frame || !self->data || !self->packed || !read_data(data_file, self->data)) {
        ${name}_free(self);
        free(scratch);
        return NULL;
    }
    memset(self->frame, 0, FRAME_BYTES);
    prepare(self, scratch);
    free(scratch);
    return self;
}

void ${name}_run($name *self$parameters)
{
$changing
    ${name}_serial(self->frame);
}

void ${name}_free($name *self)
{
    if (!self)
        return;
    free(self->frame);
    free(self->data);
    free(self->packed);
    free(self);
}
""")

TEST = Template("""\
/* Calls the library on the arguments in a file and compares the results with those in it, bit by bit. */
#include "$name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *room(size_t bytes)
{
    void *found = malloc(bytes ? bytes : 1);
    if (!found)
        exit(2);
    return found;
}

static void take(FILE *file, void *into, size_t bytes)
{
    if (bytes && fread(into, 1, bytes, file) != bytes)
        exit(2);
}

static int differs(const char *name, const void *found, const void *expected, size_t bytes)
{
    int wrong = memcmp(found, expected, bytes) != 0;
    printf("%s: %s\\n", name, wrong ? "DIFFERS" : "equal");
    return wrong;
}

int main(int count, char **words)
{
    const char *data = count > 1 ? words[1] : "$name.data";
    FILE *file = fopen(count > 2 ? words[2] : "$name.example", "rb");
    $name *self = ${name}_load(data);
    int wrong = 0;
    if (!self || !file) {
        fprintf(stderr, "%s cannot be read\\n", self ? "the example" : data);
        return 2;
    }
$test_buffers
$test_expected
$test_reads
    ${name}_run(self$test_arguments);
$test_checks
    ${name}_free(self);
    return wrong ? 1 : 0;
}
""")
