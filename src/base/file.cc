// Reads files by stdio; makes and removes directories.
#include "base/file.h"

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>

namespace hvd {

bool read_file(const std::string& path, size_t most, std::string* ret_bytes) {
  FILE* file = fopen(path.c_str(), "re");
  if (file == nullptr) return false;
  ret_bytes->resize(most);
  ret_bytes->resize(fread(ret_bytes->data(), 1, most, file));
  const bool good = ferror(file) == 0;
  fclose(file);
  return good;
}

std::string real_path(const std::string& path) {
  char* const real = ::realpath(path.c_str(), nullptr);
  if (real == nullptr) return "";
  std::string result = real;
  ::free(real);
  return result;
}

std::string path_in(std::string directory, std::string_view name) {
  if (!directory.empty() && !directory.ends_with('/')) directory += '/';
  return directory.append(name);
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(directory.c_str()), ::closedir);
  while (const dirent* const entry = open ? ::readdir(open.get()) : nullptr) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

int make_directories(const std::string& path) {
  if (path.empty()) return ENOENT;
  for (size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string part = path.substr(0, end);
    if (::mkdir(part.c_str(), 0777) == 0) continue;
    const int why = errno;
    struct stat info {};
    if (::stat(part.c_str(), &info) != 0) return why;
    if (!S_ISDIR(info.st_mode)) return ENOTDIR;
  }
  return 0;
}

int remove_directory(const std::string& path) {
  constexpr int kDescriptors = 16;
  const auto entry = [](const char* name, const struct stat*, int, struct FTW*) {
    return ::remove(name) == 0 || errno == ENOENT ? 0 : errno;
  };
  const int result = ::nftw(path.c_str(), entry, kDescriptors, FTW_DEPTH | FTW_PHYS);
  if (result != -1) return result;
  return errno == ENOENT ? 0 : errno;
}

}  // namespace hvd
