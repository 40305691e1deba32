// Variables that MPI reads, changed in a process whose other threads may be reading the environment.
#pragma once

#include <string>

namespace hvdmpi {

/// As setenv and unsetenv, but for readers: what they look at stays as it is, in memory that is never freed.
/// The C library's own functions move the table under a getenv of another thread, which then crashes. Writers
/// wait for each other.
void set_variable(const std::string& name, const std::string& value, bool overwrite);
void unset_variable(const std::string& name);

/// From here on setenv, unsetenv and putenv of the library whose file name begins with `component` do the
/// same: MPI sets variables of its own as it begins, in a thread beside the program's.
void keep_readers(const char* component);

}  // namespace hvdmpi
