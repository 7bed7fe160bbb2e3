"""The C files of an exported program, with places for what differs from one to another."""

from string import Template

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
