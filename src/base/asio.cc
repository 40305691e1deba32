// Asio's own code, compiled once: all other units see declarations alone (ASIO_SEPARATE_COMPILATION).
#include <asio/impl/src.hpp>
