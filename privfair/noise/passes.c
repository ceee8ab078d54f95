/* The passes of lattice_sampler.py and source.py over integers, one loop each where numpy takes some ten.
 *
 * Optional: without it numpy does the same, to the bit. Nothing here computes an exponential: what integers leave open,
 * the tail included, is listed for the caller, so the proof of docs/theorems/discrete-noise.md has nothing to add.
 */
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { BLOCKS = 256, SLOTS = 65536, SHIFT = 17, UNUSED_BITS = 11 };

static PyObject *finish(Py_buffer *buffers, int count, int fits, Py_ssize_t result) {
    for (int i = 0; i < count; i++) PyBuffer_Release(buffers + i);
    if (!fits) PyErr_SetString(PyExc_ValueError, "buffers of different lengths");
    return fits ? PyLong_FromSsize_t(result) : NULL;
}

/* Sizes without signs, which of them are accepted for certain, and the numbers of those that are open. */
static PyObject *propose(PyObject *self, PyObject *args) {
    Py_buffer b[8];
    int unused, width_bits;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*w*w*w*ii", b, b + 1, b + 2, b + 3, b + 4, b + 5, b + 6, b + 7, &unused,
                          &width_bits))
        return NULL;
    const Py_ssize_t n = b[0].len / 8, blocks = b[3].len / 8;
    const int fits = b[1].len == 8 * n && b[2].len == SLOTS && blocks <= BLOCKS && b[4].len == 8 * blocks
                     && b[5].len == 8 * n && b[6].len == n && b[7].len == 8 * n && width_bits >= 0 && width_bits < 64;
    Py_ssize_t open = 0;
    if (fits) {
        const uint64_t *place = b[0].buf, *uniform = b[1].buf, mask = ((uint64_t)1 << width_bits) - 1;
        const uint8_t *slot = b[2].buf;
        int64_t first[BLOCKS] = {0}, certain[BLOCKS] = {0}, *values = b[5].buf, *cases = b[7].buf;
        uint8_t *accepted = b[6].buf;
        memcpy(first, b[3].buf, 8 * blocks);
        memcpy(certain, b[4].buf, 8 * blocks);
        for (Py_ssize_t i = 0; i < n; i++) {
            const int block = slot[place[i] & (SLOTS - 1)];
            const int sure = (int64_t)(uniform[i] >> UNUSED_BITS) < certain[block];
            values[i] = first[block] + (int64_t)((place[i] >> SHIFT) & mask);
            accepted[i] = (uint8_t)sure;
            cases[open] = i;
            open += (block != unused) & !sure;
        }
    }
    return finish(b, 8, fits, open);
}

/* The accepted values with their signs; zero has one sign only. */
static PyObject *settle(PyObject *self, PyObject *args) {
    Py_buffer b[4];
    if (!PyArg_ParseTuple(args, "y*y*y*w*", b, b + 1, b + 2, b + 3)) return NULL;
    const Py_ssize_t n = b[0].len / 8;
    const int fits = b[1].len == 8 * n && b[2].len == n && b[3].len == 8 * n;
    Py_ssize_t kept = 0;
    if (fits) {
        const uint64_t *place = b[0].buf;
        const int64_t *values = b[1].buf;
        const uint8_t *accepted = b[2].buf;
        int64_t *out = b[3].buf;
        for (Py_ssize_t i = 0; i < n; i++) {
            const int64_t minus = (int64_t)((place[i] >> (SHIFT - 1)) & 1);
            out[kept] = (values[i] ^ -minus) + minus;
            kept += accepted[i] & !((values[i] == 0) & (int)minus);
        }
    }
    return finish(b, 4, fits, kept);
}

/* In place: values, in whole steps toward zero, plus noise; as doubles, cut to 2^53 steps. */
static PyObject *add(PyObject *self, PyObject *args) {
    Py_buffer b[2];
    double up, down;
    if (!PyArg_ParseTuple(args, "w*y*dd", b, b + 1, &up, &down)) return NULL;
    const Py_ssize_t n = b[0].len / 8;
    const int fits = b[1].len == 8 * n;
    if (fits) {
        double *values = b[0].buf;
        const int64_t *noise = b[1].buf, limit = (int64_t)1 << 53;
        for (Py_ssize_t i = 0; i < n; i++) {
            const int64_t steps = (int64_t)(values[i] * up) + noise[i];
            values[i] = (double)(steps > limit ? limit : steps < -limit ? -limit : steps) * down;
        }
    }
    return finish(b, 2, fits, n);
}

static PyMethodDef methods[] = {
    {"propose", propose, METH_VARARGS, NULL},
    {"settle", settle, METH_VARARGS, NULL},
    {"add", add, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "passes", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_passes(void) { return PyModule_Create(&module); }
