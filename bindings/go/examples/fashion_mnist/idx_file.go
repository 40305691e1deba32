// Reads the IDX files of the data set.

package main

import (
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Images of the MNIST family.
type images struct {
	count, pixels int     // pixels of one image
	data          []uint8 // count x pixels, row-major, 0 (white) .. 255
	labels        []uint8 // 0 .. 9
}

// readIDX reads a gzipped IDX file of unsigned bytes: big-endian header, then bytes.
func readIDX(path string) (shape []int, data []uint8, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("%w (Debian package dataset-fashion-mnist)", err)
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err == nil {
		data, err = io.ReadAll(unzipped)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	size := 1
	if len(data) >= 4 && data[2] == 8 { // 0, 0, type (8: unsigned byte), number of dimensions
		dimensions := int(data[3])
		for at := 4; at < 4+4*dimensions && at+4 <= len(data); at += 4 {
			shape = append(shape, int(binary.BigEndian.Uint32(data[at:])))
			size *= shape[len(shape)-1]
		}
		data = data[4+4*len(shape):]
	}
	if len(shape) == 0 || size != len(data) {
		return nil, nil, fmt.Errorf("%s is damaged or not an IDX file of unsigned bytes", path)
	}
	return shape, data, nil
}

// readImages reads a set: "train" or "t10k".
func readImages(directory, set string) (*images, error) {
	shape, data, err := readIDX(filepath.Join(directory, set+"-images-idx3-ubyte.gz"))
	if err != nil {
		return nil, err
	}
	labelShape, labels, err := readIDX(filepath.Join(directory, set+"-labels-idx1-ubyte.gz"))
	if err != nil {
		return nil, err
	}
	if len(shape) != 3 || len(labelShape) != 1 || shape[0] != labelShape[0] {
		return nil, fmt.Errorf("%s: images and labels of set %s do not fit together", directory, set)
	}
	return &images{shape[0], shape[1] * shape[2], data, labels}, nil
}

// gather gives the pixels of the chosen samples, from -0.5 to 0.5, and their labels.
func (i *images) gather(chosen []uint64) (pixels []float32, labels []uint8) {
	for _, sample := range chosen {
		for _, pixel := range i.data[int(sample)*i.pixels : (int(sample)+1)*i.pixels] {
			pixels = append(pixels, float32(pixel)/255-0.5)
		}
		labels = append(labels, i.labels[sample])
	}
	return pixels, labels
}
