/* What hvd-sys/src/bindings.rs is made of: see scripts/bindings.sh. */
#include "hvd/hvd.h"
#include "hvd/driver.h"
