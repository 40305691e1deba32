// Loads libpmix and finds its functions.
#include "modules/mpi_elastic/pmix_server/library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <type_traits>

namespace hvd::pmix_server {

Library pmix;

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  _exit(1);
}

void load_library(const char* file) {
  void* const handle = dlopen(file, RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) fail(dlerror());
  const auto find = [&](auto& function, const char* name) {
    void* const address = dlsym(handle, name);
    if (address == nullptr) fail(std::string(file) + " brings no PMIx: " + dlerror());
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
  };
  find(pmix.init, "PMIx_server_init");
  find(pmix.register_namespace, "PMIx_server_register_nspace");
  find(pmix.register_client, "PMIx_server_register_client");
  find(pmix.setup_fork, "PMIx_server_setup_fork");
  find(pmix.node_map, "PMIx_generate_regex");
  find(pmix.process_map, "PMIx_generate_ppn");
  find(pmix.register_handler, "PMIx_Register_event_handler");
  find(pmix.load, "PMIx_Info_load");
  find(pmix.copy, "PMIx_Value_xfer");
  find(pmix.text, "PMIx_Error_string");
}

}  // namespace hvd::pmix_server
