// Where this library lies, and with it what is installed beside it.
#pragma once

#include <string>

namespace hvd {

/// The absolute directory of the object that this code is part of: libhvd.so, or the program that links the
/// core. Empty if it can't be told. Never relative to the current directory, which may be anybody's.
std::string own_directory();

/// For a part of the library in an object of its own: `directory` is libhvd.so's. Once, before all else.
void set_own_directory(std::string directory);

}  // namespace hvd
