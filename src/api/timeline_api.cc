// The timeline of hvd.h.
#include "api/handles.h"
#include "elastic/worker.h"

using hvd::api::connected_worker;
using hvd::api::guarded;
using hvd::api::required_text;
using hvd::api::Use;

extern "C" {

hvd_status hvd_timeline_start(hvd_context* context, const char* path, hvd_error* error) {
  return guarded(error, [&] {
    return connected_worker(*Use<hvd_context>(context, "context"))
        .timeline()
        ->start(required_text(path, "path"));
  });
}

hvd_status hvd_timeline_stop(hvd_context* context, hvd_error* error) {
  return guarded(error,
                 [&] { return connected_worker(*Use<hvd_context>(context, "context")).timeline()->stop(); });
}

}  // extern "C"
