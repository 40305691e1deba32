// Options, description and detail of the modules over MPI.
#include "modules/mpi/instance.h"

#include "modules/kit/net.h"

namespace hvdmpi {

hvd_backend_description describe_mpi() {
  hvd_backend_description description = hvdkit::description_of(kName, library_version(), HVD_MEMORY_HOST);
  description.messages = 1;
  description.max_instances = 1;
  return description;
}

Config config_of(const hvdkit::Options& options) {
  Config config;
  config.interface = options.text("interface");
  config.ip = hvdkit::local_address(config.interface, options.text("route"));
  if (!config.interface.empty()) config.interface = config.ip;
  config.elastic = options.flag("elastic", config.elastic);
  config.segment_bytes =
      static_cast<size_t>(options.integer("segment_bytes", config.segment_bytes, 64, uint64_t{1} << 30));
  return config;
}

std::string detail_of(const Config& config) {
  const World world = Runtime::get().world();
  return "messages by tcp " + config.ip + ", data by MPI, process " + std::to_string(world.rank) + " of " +
         std::to_string(world.size);
}

}  // namespace hvdmpi
