// MPI in a process that was started apart from all others, and what it takes to let it live through their
// deaths. How is each MPI's own: open_mpi.cc and mpich.cc, of which the module has one.
#pragma once

#include <string>

#include "modules/mpi/runtime.h"

namespace hvdmpi {

class ElasticRuntime : public Runtime {
 public:
  static ElasticRuntime& get();  // of the MPI that the module is built for

  /// What MPI reads as it begins, where the environment doesn't say otherwise. interface: an address of this
  /// host for MPI's TCP, or "" if the user named none; links: the one that the links use, or "". Writes to
  /// the process's environment, unless the program has begun MPI itself. Throws Failure(HVD_UNAVAILABLE) with
  /// what is missing.
  void prepare(const std::string& interface, const std::string& links);

  /// Whether MPI's TCP is kept from the deaths of peers: see shield.h. If not, `why_not` says what was not
  /// found.
  virtual bool shielded() const = 0;
  virtual std::string why_not() const = 0;

 protected:
  virtual void set_variables(const std::string& interface, const std::string& links) = 0;
};

/// setenv, but for what is set already.
void set_default(const char* name, const std::string& value);
/// The interface that has the address; "" if none has.
std::string interface_of(const std::string& address);

}  // namespace hvdmpi
