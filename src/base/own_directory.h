// Where this library lies, and with it what is installed beside it.
#pragma once

#include <string>

namespace hvd {

/// The absolute directory of the object that this code is part of: libhvd.so, or the program that links the
/// core. Empty if it can't be told. Never relative to the current directory, which may be anybody's.
std::string own_directory();

}  // namespace hvd
