/* To be preloaded: the C library's functions that change the environment say who called them, on standard
 * error. They move the table under a getenv of another thread. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static void say(const char* function, const char* name, void* caller) {
  if (strcmp(program_invocation_short_name, "scenario_worker") != 0) return;
  Dl_info info = {0};
  dladdr(caller, &info);
  fprintf(stderr, "the table was moved: %s(%s) of %s\n", function, name,
          info.dli_fname ? info.dli_fname : "?");
}

int setenv(const char* name, const char* value, int overwrite) {
  int (*next)(const char*, const char*, int);
  *(void**)&next = dlsym(RTLD_NEXT, "setenv");
  say("setenv", name, __builtin_return_address(0));
  return next(name, value, overwrite);
}

int unsetenv(const char* name) {
  int (*next)(const char*);
  *(void**)&next = dlsym(RTLD_NEXT, "unsetenv");
  say("unsetenv", name, __builtin_return_address(0));
  return next(name);
}

int putenv(char* entry) {
  int (*next)(char*);
  *(void**)&next = dlsym(RTLD_NEXT, "putenv");
  say("putenv", entry, __builtin_return_address(0));
  return next(entry);
}
