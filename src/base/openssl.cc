// TensorFlow's wheels load libtensorflow_framework.so with RTLD_GLOBAL, and it exports BoringSSL: names of
// OpenSSL with other structs behind them. A call that ends up there crashes, so that it must be known before
// the first one.
#include "base/openssl.h"

#include <dlfcn.h>
#include <openssl/crypto.h>

namespace hvd {

bool openssl_is_replaced(const char** ret_file) {
  // The one function that every OpenSSL and every fork has, and that touches nothing. Forks call themselves
  // 1.1.1.
  if (OpenSSL_version_num() >= 0x30000000UL) return false;
  Dl_info info{};
  *ret_file = dladdr(reinterpret_cast<void*>(&OpenSSL_version_num), &info) != 0 ? info.dli_fname : nullptr;
  return true;
}

bool openssl_is_shadowed() {
  void* const global = dlsym(RTLD_DEFAULT, "OpenSSL_version_num");
  return global != nullptr && global != reinterpret_cast<void*>(&OpenSSL_version_num);
}

}  // namespace hvd
