/* What beginning MPI has changed in this process, in lines: by MPI itself (built with HVD_TEST_BARE), or by
 * libhvd under a launcher.
 *    "env+ NAME", "env- NAME", "env= NAME": variables that came, went, changed.
 *    "signal N OBJECT": whose handler it has; some libraries install theirs when they are loaded.
 *    "patched OBJECT SYMBOL": a table of calls that leads into a module of libhvd.
 *    "call FUNCTION OBJECT": a call from an object of libhvd to one of the functions below, which change a
 *    process. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef HVD_TEST_BARE
#include <mpi.h>
#else
#include <hvd/hvd.h>
#endif

extern char** environ;

/* ---- calls: this program's functions come before libc's ---- */

static char calls[256][128];
static int call_count;

static const char* base_name(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash == NULL ? path : slash + 1;
}

static const char* object_of(const void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0 && info.dli_fname != NULL ? base_name(info.dli_fname) : "?";
}

static void note(const char* function, const void* caller) {
  const char* object = object_of(caller);
  if (strncmp(object, "libhvd", 6) != 0) return;
  char line[128];
  snprintf(line, sizeof line, "call %s %s", function, object);
  for (int i = 0; i < call_count; ++i) {
    if (strcmp(calls[i], line) == 0) return;
  }
  if (call_count < 256) strcpy(calls[call_count++], line);
}

/* libc's own, of the type of this program's. */
#define REAL(name) __typeof__(&name) real = (__typeof__(&name))(uintptr_t)dlsym(RTLD_NEXT, #name)

int setenv(const char* name, const char* value, int overwrite) {
  REAL(setenv);
  note("setenv", __builtin_return_address(0));
  return real(name, value, overwrite);
}
int unsetenv(const char* name) {
  REAL(unsetenv);
  note("unsetenv", __builtin_return_address(0));
  return real(name);
}
int putenv(char* entry) {
  REAL(putenv);
  note("putenv", __builtin_return_address(0));
  return real(entry);
}
int sigaction(int number, const struct sigaction* action, struct sigaction* before) {
  REAL(sigaction);
  if (action != NULL) note("sigaction", __builtin_return_address(0));
  return real(number, action, before);
}
int mprotect(void* address, size_t size, int protection) {
  REAL(mprotect);
  // libhvd itself protects pages of its own shared memory; what patches a table of calls is a module.
  const void* caller = __builtin_return_address(0);
  if (strncmp(object_of(caller), "libhvd.so", 9) != 0) note("mprotect", caller);
  return real(address, size, protection);
}
/* What atexit becomes; destructors of static objects bring the object. */
int __cxa_atexit(void (*function)(void*), void* object, void* dso) {
  REAL(__cxa_atexit);
  if (object == NULL) note("atexit", __builtin_return_address(0));
  return real(function, object, dso);
}

/* ---- tables of calls ---- */

#ifdef __x86_64__
static int is_slot(uint64_t type) { return type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT; }
#elif defined(__aarch64__)
static int is_slot(uint64_t type) { return type == R_AARCH64_JUMP_SLOT || type == R_AARCH64_GLOB_DAT; }
#else
static int is_slot(uint64_t type) { return type == UINT64_MAX; }
#endif

static int visit(struct dl_phdr_info* info, size_t size, void* context) {
  (void)size;
  (void)context;
  const char* object = base_name(info->dlpi_name);
  if (strncmp(object, "libhvd", 6) == 0 || strstr(object, "vdso") != NULL) return 0;
  const ElfW(Dyn)* entry = NULL;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
      entry = (const ElfW(Dyn)*)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
  }
  const ElfW(Sym)* symbols = NULL;
  const char* names = NULL;
  const ElfW(Rela) * tables[2] = {NULL, NULL};
  size_t counts[2] = {0, 0};
  for (; entry != NULL && entry->d_tag != DT_NULL; ++entry) {
    const uintptr_t value = entry->d_un.d_val;
    const uintptr_t at = value < info->dlpi_addr ? info->dlpi_addr + value : value;
    if (entry->d_tag == DT_SYMTAB) symbols = (const ElfW(Sym)*)at;
    if (entry->d_tag == DT_STRTAB) names = (const char*)at;
    if (entry->d_tag == DT_JMPREL) tables[0] = (const ElfW(Rela)*)at;
    if (entry->d_tag == DT_PLTRELSZ) counts[0] = value / sizeof(ElfW(Rela));
    if (entry->d_tag == DT_RELA) tables[1] = (const ElfW(Rela)*)at;
    if (entry->d_tag == DT_RELASZ) counts[1] = value / sizeof(ElfW(Rela));
  }
  for (int table = 0; table < 2; ++table) {
    for (size_t i = 0; tables[table] != NULL && i < counts[table]; ++i) {
      const ElfW(Rela)* place = &tables[table][i];
      if (!is_slot(ELF64_R_TYPE(place->r_info))) continue;
      const char* name = names + symbols[ELF64_R_SYM(place->r_info)].st_name;
      const void* target = *(void**)(info->dlpi_addr + place->r_offset);
      const char* where = object_of(target);
      /* The program itself calls libhvd, and modules have names of their own. */
      if (strncmp(where, "libhvd_", 7) == 0)
        printf("patched %s %s\n", *object == 0 ? "program" : object, name);
    }
  }
  return 0;
}

/* ---- */

enum { kSignals = 65 };

static char** copy_of_environment(void) {
  size_t count = 0;
  while (environ[count] != NULL) ++count;
  char** copy = calloc(count + 1, sizeof *copy);
  for (size_t i = 0; i < count; ++i) copy[i] = strdup(environ[i]);
  return copy;
}

static const char* value_in(char** environment, const char* entry) {
  const size_t length = strcspn(entry, "=");
  for (; *environment != NULL; ++environment) {
    if (strncmp(*environment, entry, length) == 0 && (*environment)[length] == '=') return *environment;
  }
  return NULL;
}

static void name_of(const char* entry, const char* what) {
  printf("%s %.*s\n", what, (int)strcspn(entry, "="), entry);
}

int main(void) {
  char** before = copy_of_environment();
#ifdef HVD_TEST_BARE
  int level = 0;
  MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
  MPI_Barrier(MPI_COMM_WORLD);
#else
  hvd_error error = HVD_ERROR_INIT;
  hvd_context* context = NULL;
  if (hvd_init(NULL, &context, &error) != HVD_OK) {
    fprintf(stderr, "hvd_init: %s\n", error.message);
    return 1;
  }
  if (hvd_barrier(context, "all", &error) != HVD_OK) {
    fprintf(stderr, "hvd_barrier: %s\n", error.message);
    return 1;
  }
#endif
  for (char** entry = environ; *entry != NULL; ++entry) {
    const char* old = value_in(before, *entry);
    if (old == NULL) name_of(*entry, "env+");
    if (old != NULL && strcmp(old, *entry) != 0) name_of(*entry, "env=");
  }
  for (char** entry = before; *entry != NULL; ++entry) {
    if (value_in(environ, *entry) == NULL) name_of(*entry, "env-");
  }
  for (int i = 1; i < kSignals; ++i) {
    struct sigaction now;
    if (sigaction(i, NULL, &now) != 0 || now.sa_handler == SIG_DFL) continue;
    const void* handler = (const void*)(uintptr_t)now.sa_handler;
    printf("signal %d %s\n", i, now.sa_handler == SIG_IGN ? "ignored" : object_of(handler));
  }
  dl_iterate_phdr(visit, NULL);
  for (int i = 0; i < call_count; ++i) printf("%s\n", calls[i]);
  printf("end\n");
  fflush(stdout);
#ifdef HVD_TEST_BARE
  MPI_Finalize();
#else
  if (hvd_shutdown(context, HVD_DEFAULT_TIMEOUT, &error) != HVD_OK) {
    fprintf(stderr, "hvd_shutdown: %s\n", error.message);
    return 1;
  }
  hvd_destroy(context);
#endif
  return 0;
}
