// Files without std::ifstream, and without those parts of std::filesystem that are large: a static libstdc++
// would bring its locales and its walks through directories into the library.
#pragma once

#include <cstddef>
#include <string>

namespace hvd {

/// Reads the first bytes of a file, at most `most`. False if it can't be opened or read.
bool read_file(const std::string& path, size_t most, std::string* ret_bytes);

/// The absolute path without links, or "" and errno.
std::string real_path(const std::string& path);

/// Makes the directory and those above it. 0, or errno.
int make_directories(const std::string& path);

/// Removes the directory and all that is in it, following no link. What is gone meanwhile is no failure. 0,
/// or errno.
int remove_directory(const std::string& path);

}  // namespace hvd
