// An instance over generations of MPI: what the two modules have in common of it. A module's Kind brings
// kName, prepare(config) before MPI begins, which may refuse, and make(config, host).
#pragma once

#include <memory>
#include <string>

#include "hvd/backend.hpp"
#include "modules/kit/generations.h"
#include "modules/mpi/generation.h"

namespace hvdmpi {

hvd_backend_description describe_mpi();
/// Throws Failure(HVD_INVALID).
Config config_of(const hvdkit::Options& options);
/// One line about an instance.
std::string detail_of(const Config& config);

template <class Kind>
class Instance : public hvdkit::GenerationInstance<Generation> {
 public:
  static hvd_backend_description describe() { return describe_mpi(); }

  Instance(const hvd_backend_host& host, const hvdkit::Options& options)
      : Instance(host, config_of(options)) {}
  Instance(const hvd_backend_host& host, const Config& config)
      : GenerationInstance([config, host] { return Kind::make(config, host); }), config_(config) {
    Kind::prepare(config_);
    Runtime::get().begin();  // takes its time: meanwhile the job forms
  }

  std::string detail() const { return detail_of(config_); }

 private:
  const Config config_;
};

}  // namespace hvdmpi
