// Pages for memory that is about to be written: asked for many at once they cost a fraction of what they cost
// one by one, at their first use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hvd::state {

/// Gives memory its pages, if most of them are not there; its bytes stay. Only a hint.
void touch(void* data, size_t size);

/// The same for memory of this library that was just allocated, on all cores if it is large and `parallel`.
/// In huge pages, unless the kernel has none at hand: then it would move other pages about to make some
/// (sysfs: transparent_hugepage/defrag), which takes many times as long as the copy that the memory is for.
void get_pages(const std::vector<std::span<uint8_t>>& fresh, bool parallel = true);

/// The same for the data of a file in memory, which begin at `offset` of it and are mapped: without its pages
/// a write would end the process if the machine has no more. False: there are not so many.
bool get_file_pages(std::span<uint8_t> data, int descriptor, size_t offset);

/// Bytes: nobody's word makes room for more.
uint64_t memory_of_machine();

}  // namespace hvd::state
