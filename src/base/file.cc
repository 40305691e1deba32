// Reads files by stdio.
#include "base/file.h"

#include <stdio.h>

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

}  // namespace hvd
