// Names the exception that ends the process, where libstdc++ is linked statically. That library's own handler
// would bring a demangler.
#include <cxxabi.h>
#include <stdio.h>
#include <stdlib.h>

#include <exception>
#include <typeinfo>

#ifdef __GLIBCXX__
namespace __gnu_cxx {

void __verbose_terminate_handler() {
  const std::type_info* type = abi::__cxa_current_exception_type();
  try {
    if (type != nullptr) throw;
    fputs("libhvd: terminate called without an exception\n", stderr);
  } catch (const std::exception& e) {
    fprintf(stderr, "libhvd: terminate called by an exception of type %s: %s\n", type->name(), e.what());
  } catch (...) { fprintf(stderr, "libhvd: terminate called by an exception of type %s\n", type->name()); }
  abort();
}

}  // namespace __gnu_cxx
#endif
