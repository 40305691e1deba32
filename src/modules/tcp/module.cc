// The module: collectives over the kit's own connections, with no library underneath but OpenSSL.
#include "hvd/backend.hpp"
#include "modules/kit/generations.h"
#include "modules/kit/host_generation.h"

namespace hvdtcp {
namespace {

class Instance : public hvdkit::GenerationInstance<hvdkit::HostGeneration> {
 public:
  static constexpr const char* kName = "tcp";

  static hvd_backend_description describe() {
    hvd_backend_description description = hvdkit::description_of(kName, HVD_TCP_VERSION, HVD_MEMORY_HOST);
    description.messages = 1;
    return description;
  }

  Instance(const hvd_backend_host& host, const hvdkit::Options& options)
      : Instance(host, hvdkit::HostConfig::of(options)) {}
  Instance(const hvd_backend_host& host, const hvdkit::HostConfig& config)
      : GenerationInstance([config, host] {
          return std::make_shared<hvdkit::HostGeneration>(kName, hvdkit::run_collective, config, host);
        }),
        detail_(config.text()) {}

  std::string detail() const { return detail_; }

 private:
  const std::string detail_;
};

}  // namespace
}  // namespace hvdtcp

HVDKIT_EXPORT_MODULE(hvdtcp::Instance)
