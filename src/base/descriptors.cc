// getrlimit.
#include "base/descriptors.h"

#include <sys/resource.h>

namespace hvd {

size_t descriptor_limit() {
  constexpr size_t kMany = size_t{1} << 30;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > kMany) return kMany;
  return static_cast<size_t>(limit.rlim_cur);
}

}  // namespace hvd
