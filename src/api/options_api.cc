// The options and the small change of hvd.h.
#include <cstdlib>
#include <memory>

#include "api/guard.h"
#include "api/handles.h"
#include "base/callback.h"
#include "numeric/dtype.h"

using hvd::api::guarded;
using hvd::api::required;
using hvd::api::required_text;
using hvd::api::Use;

extern "C" {

const char* hvd_status_name(hvd_status status) { return hvd::status_name(status); }
const char* hvd_version(void) { return HVD_VERSION_STRING; }
void hvd_free(void* memory) { std::free(memory); }
size_t hvd_dtype_size(hvd_dtype dtype) { return hvd::dtype_size(dtype); }
const char* hvd_dtype_name(hvd_dtype dtype) { return hvd::dtype_name(dtype); }

hvd_status hvd_options_create(hvd_options** ret_options, hvd_error* error) {
  return guarded(error, [&] {
    required(ret_options, "ret_options");
    *ret_options = hvd::api::make_handle(std::make_shared<hvd_options>());
  });
}

void hvd_options_destroy(hvd_options* options) { hvd::api::end_handle(options); }

hvd_status hvd_options_set(hvd_options* options, const char* key, const char* text, hvd_error* error) {
  return guarded(error, [&] {
    Use<hvd_options>(options, "options")
        ->options.set(required_text(key, "key"), std::string(&required(text, "text")));
  });
}

hvd_status hvd_options_set_int(hvd_options* options, const char* key, int64_t value, hvd_error* error) {
  return guarded(
      error, [&] { Use<hvd_options>(options, "options")->options.set(required_text(key, "key"), value); });
}

hvd_status hvd_options_set_duration(hvd_options* options, const char* key, int64_t value_ns,
                                    hvd_error* error) {
  return guarded(error, [&] {
    Use<hvd_options>(options, "options")->options.set(required_text(key, "key"), hvd::Duration(value_ns));
  });
}

hvd_status hvd_options_set_bool(hvd_options* options, const char* key, int32_t value, hvd_error* error) {
  return guarded(error, [&] {
    Use<hvd_options>(options, "options")->options.set(required_text(key, "key"), value != 0);
  });
}

hvd_status hvd_options_get(hvd_options* options, const char* key, const char** ret_text, hvd_error* error) {
  return guarded(error, [&] {
    required(ret_text, "ret_text");
    const Use<hvd_options> use(options, "options");
    use->text = use->options.text(required_text(key, "key"));
    *ret_text = use->text.c_str();
  });
}

const char* hvd_options_describe(void) { return hvd::Options::describe().c_str(); }

hvd_status hvd_options_set_log(hvd_options* options, hvd_log_level level, hvd_log_fn log, void* userdata,
                               hvd_destroy_fn destroy, hvd_error* error) {
  return guarded(error, [&] {
    const hvd::Callback<hvd_log_fn> callback(log, userdata, destroy);
    const Use<hvd_options> use(options, "options");
    if (level < HVD_LOG_DEFAULT || level > HVD_LOG_OFF) {
      throw hvd::Error(HVD_INVALID, fmt::format("log level is {}: expected {} to {}", level, HVD_LOG_DEFAULT,
                                                HVD_LOG_OFF));
    }
    const hvd_log_level least =
        level == HVD_LOG_DEFAULT ? hvd::parse_log_level(use->options.string("log_level")) : level;
    use->options.logger = std::make_shared<hvd::Logger>(least, callback);
  });
}

}  // extern "C"
