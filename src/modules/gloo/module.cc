// The module: its description, its options, and instances over Gloo's generations.
#include "modules/kit/module.h"

#include <gloo/config.h>

#include <limits>

#include "modules/gloo/generation.h"
#include "modules/kit/generations.h"

namespace hvdgloo {
namespace {

#define HVDGLOO_TEXT_(x) #x
#define HVDGLOO_TEXT(x) HVDGLOO_TEXT_(x)
constexpr const char* kVersion = HVDGLOO_TEXT(GLOO_VERSION_MAJOR) "." HVDGLOO_TEXT(
    GLOO_VERSION_MINOR) "." HVDGLOO_TEXT(GLOO_VERSION_PATCH);

class Instance : public hvdkit::GenerationInstance<Generation> {
 public:
  static constexpr const char* kName = hvdgloo::kName;

  static hvd_backend_description describe() {
    hvd_backend_description description = hvdkit::description_of(kName, kVersion, HVD_MEMORY_HOST);
    description.messages = 1;
    return description;
  }

  Instance(const hvd_backend_host& host, const hvdkit::Options& options)
      : Instance(host, config_of(options)) {}
  Instance(const hvd_backend_host& host, const Config& config)
      : GenerationInstance([config, host] { return std::make_shared<Generation>(config, host); }),
        ip_(config.ip) {}

  std::string detail() const { return "tcp " + ip_; }

 private:
  static Config config_of(const hvdkit::Options& options) {
    Config config;
    config.ip = hvdkit::local_address(options.text("interface"), options.text("route"));
    config.segment_bytes =
        options.integer("segment_bytes", config.segment_bytes, 64, std::numeric_limits<uint64_t>::max());
    return config;
  }

  const std::string ip_;
};

}  // namespace
}  // namespace hvdgloo

HVDKIT_EXPORT_MODULE(hvdgloo::Instance)
