// The timeline of hvd.h.
#include "api/handles.h"

using hvd::api::guarded;
using hvd::api::open_worker;
using hvd::api::required_text;

extern "C" {

hvd_status hvd_timeline_start(hvd_context* context, const char* path, hvd_error* error) {
  return guarded(error, [&] { return open_worker(context).timeline()->start(required_text(path, "path")); });
}

hvd_status hvd_timeline_stop(hvd_context* context, hvd_error* error) {
  return guarded(error, [&] { return open_worker(context).timeline()->stop(); });
}

}  // extern "C"
