// Makes this process a client of the job's PMIx server.
#include "modules/mpi_elastic/pmix_client.h"

#include <stdlib.h>

#include <algorithm>

#include "modules/mpi_elastic/environment.h"

#if __has_include(<pmix.h>)
#include <dlfcn.h>
#include <mpi.h>
#include <pmix.h>
#endif

namespace hvdmpi {

void meet_through(const std::string& server, const std::string& worker) {
  for (size_t begin = 0; begin < server.size();) {
    const size_t end = std::min(server.find('|', begin), server.size());
    const std::string entry = server.substr(begin, end - begin);
    begin = end + 1;
    const size_t equals = entry.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = entry.substr(0, equals);
    std::string value = entry.substr(equals + 1);
    if (name == "PMIX_NAMESPACE") value += "@" + worker;
    set_variable(name, value, true);
  }
}

#if __has_include(<pmix.h>)
namespace {

// Handlers of one kind of event come before those of all kinds, of which Open MPI's is one: it ends the
// process.
void on_lost_server(size_t, pmix_status_t, const pmix_proc_t*, pmix_info_t[], size_t, pmix_info_t[], size_t,
                    pmix_event_notification_cbfunc_fn_t done, void* context) {
  if (done != nullptr) done(PMIX_EVENT_ACTION_COMPLETE, nullptr, 0, nullptr, nullptr, context);
}

}  // namespace

void outlive_server() {
  // The libpmix that libmpi has.
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&MPI_Init_thread), &info) == 0) return;
  void* const library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return;
  const auto add =
      reinterpret_cast<decltype(&PMIx_Register_event_handler)>(dlsym(library, "PMIx_Register_event_handler"));
  dlclose(library);
  if (add == nullptr) return;
  static pmix_status_t lost = PMIX_ERR_LOST_CONNECTION;
  // Without a callback it waits until the handler is there, and gives its number.
  add(&lost, 1, nullptr, 0, on_lost_server, nullptr, nullptr);
}
#else
void outlive_server() {}
#endif

}  // namespace hvdmpi
