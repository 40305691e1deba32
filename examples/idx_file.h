// Reads the gzipped IDX files of the MNIST family: big-endian header, then bytes.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

struct Images {
  int64_t count = 0, pixels = 0;  // pixels of one image
  std::vector<uint8_t> data;      // count x pixels, row-major, 0 (white) .. 255
  std::vector<uint8_t> labels;    // count, 0 .. 9
};

/// Bytes after the header of an IDX file of unsigned bytes; *ret_shape gets its dimensions.
inline std::vector<uint8_t> read_idx(const std::string& path, std::vector<int64_t>* ret_shape) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr)
    throw std::runtime_error("can't open " + path + " (Debian package dataset-fashion-mnist)");
  const auto read = [&](void* data, size_t size) {
    if (gzread(file, data, static_cast<unsigned>(size)) != static_cast<int>(size)) {
      gzclose(file);
      throw std::runtime_error(path + " is damaged or not an IDX file");
    }
  };
  uint8_t magic[4];
  read(magic, sizeof magic);  // 0, 0, type (8: unsigned byte), number of dimensions
  int64_t size = 1;
  ret_shape->clear();
  for (int i = 0; i < magic[3] && magic[2] == 8; ++i) {
    uint8_t b[4];
    read(b, sizeof b);
    ret_shape->push_back((int64_t{b[0]} << 24) | (b[1] << 16) | (b[2] << 8) | b[3]);
    size *= ret_shape->back();
  }
  if (ret_shape->empty() || size > (int64_t{1} << 30)) size = -1;
  std::vector<uint8_t> bytes(size < 0 ? 0 : static_cast<size_t>(size));
  if (size < 0) {
    gzclose(file);
    throw std::runtime_error(path + " is not an IDX file of unsigned bytes");
  }
  read(bytes.data(), bytes.size());
  gzclose(file);
  return bytes;
}

/// set: "train" or "t10k".
inline Images read_images(const std::string& directory, const std::string& set) {
  Images images;
  std::vector<int64_t> shape, label_shape;
  images.data = read_idx(directory + "/" + set + "-images-idx3-ubyte.gz", &shape);
  images.labels = read_idx(directory + "/" + set + "-labels-idx1-ubyte.gz", &label_shape);
  if (shape.size() != 3 || label_shape.size() != 1 || shape[0] != label_shape[0]) {
    throw std::runtime_error(directory + ": images and labels of set " + set + " do not fit together");
  }
  images.count = shape[0];
  images.pixels = shape[1] * shape[2];
  return images;
}
