// The module: Gloo's algorithms over the kit's connections.
#include <gloo/config.h>

#include "hvd/backend.hpp"
#include "modules/gloo/algorithms.h"
#include "modules/kit/generations.h"
#include "modules/kit/host_generation.h"

namespace hvdgloo {
namespace {

#define HVDGLOO_TEXT_(x) #x
#define HVDGLOO_TEXT(x) HVDGLOO_TEXT_(x)
constexpr const char* kVersion = HVDGLOO_TEXT(GLOO_VERSION_MAJOR) "." HVDGLOO_TEXT(
    GLOO_VERSION_MINOR) "." HVDGLOO_TEXT(GLOO_VERSION_PATCH);

class Instance : public hvdkit::GenerationInstance<hvdkit::HostGeneration> {
 public:
  static constexpr const char* kName = "gloo";

  static hvd_backend_description describe() {
    hvd_backend_description description = hvdkit::description_of(kName, kVersion, HVD_MEMORY_HOST);
    description.messages = 1;
    return description;
  }

  Instance(const hvd_backend_host& host, const hvdkit::Options& options)
      : Instance(host, hvdkit::HostConfig::of(options)) {}
  Instance(const hvd_backend_host& host, const hvdkit::HostConfig& config)
      : GenerationInstance(
            [config, host] { return std::make_shared<hvdkit::HostGeneration>(kName, run, config, host); }),
        detail_(config.text()) {}

  std::string detail() const { return detail_; }

 private:
  const std::string detail_;
};

}  // namespace
}  // namespace hvdgloo

HVDKIT_EXPORT_MODULE(hvdgloo::Instance)
