/* Cairn from C and C++: what a program can tell a store, and ask it, beyond reading and writing files below the prefix.

   A program needs none of this to be served; what it gains is in docs/C-API.md. The functions are in the library that
   `cairn run` preloads, in libcairn.so (-lcairn), and in libcairn.a: `cairn config --help`. */
#ifndef CAIRN_H
#define CAIRN_H

#ifdef __cplusplus
extern "C" {
#endif

/* The version this header is of. */
#define CAIRN_VERSION_MAJOR 0
#define CAIRN_VERSION_MINOR 1
#define CAIRN_VERSION_PATCH 0

/* The version of the library in this process: 10000 * major + 100 * minor + patch. A program that was compiled with an older
   header works with every library of the same major version, from 1.0.0 on. */
unsigned cairn_version(void);

#ifdef __cplusplus
}
#endif
#endif
