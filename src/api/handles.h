// What the opaque handles of hvd.h are.
#pragma once

#include "base/options.h"

struct hvd_options {
  hvd::Options options;
  std::string text;  // what hvd_options_get gave last
};
