// Files without std::ifstream and std::filesystem: a static libstdc++ would bring its locales, paths and
// walks through directories into the library.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace hvd {

/// Reads the first bytes of a file, at most `most`. False if it can't be opened or read.
bool read_file(const std::string& path, size_t most, std::string* ret_bytes);

/// The absolute path without links, or "" and errno.
std::string real_path(const std::string& path);

/// The path of what lies in a directory.
std::string path_in(std::string directory, std::string_view name);

/// The names of what lies in a directory, in order; none if it can't be read.
std::vector<std::string> names_in(const std::string& directory);

/// Makes the directory and those above it. 0, or errno.
int make_directories(const std::string& path);

/// Removes the directory and all that is in it, following no link. What is gone meanwhile is no failure. 0,
/// or errno.
int remove_directory(const std::string& path);

}  // namespace hvd
