//! Reads the gzipped IDX files of the MNIST family: big-endian header, then bytes.
use std::path::Path;
use std::process::Command;

pub type Failure = Box<dyn std::error::Error>;

pub struct Images {
    pub count: usize,
    /// Of one image.
    pub pixels: usize,
    /// count x pixels, row-major, 0 (white) .. 255
    pub data: Vec<u8>,
    /// 0 .. 9
    pub labels: Vec<u8>,
}

/// The dimensions, and the bytes after the header.
fn read_idx(path: &Path) -> Result<(Vec<usize>, Vec<u8>), Failure> {
    let name = path.display();
    if !path.exists() {
        return Err(format!("can't open {name} (Debian package dataset-fashion-mnist)").into());
    }
    let output = Command::new("gzip").arg("-dc").arg(path).output()?;
    let damaged = || format!("{name} is damaged or not an IDX file of unsigned bytes");
    // 0, 0, type (8: unsigned byte), number of dimensions
    let header = output.stdout.get(..4).ok_or_else(damaged)?;
    let (kind, dimensions) = (header[2], usize::from(header[3]));
    let words = output.stdout.get(4..4 + 4 * dimensions).ok_or_else(damaged)?;
    let shape: Vec<usize> =
        words.chunks_exact(4).map(|w| u32::from_be_bytes([w[0], w[1], w[2], w[3]]) as usize).collect();
    let bytes = output.stdout[4 + 4 * dimensions..].to_vec();
    if kind != 8 || shape.iter().product::<usize>() != bytes.len() {
        return Err(damaged().into());
    }
    Ok((shape, bytes))
}

/// set: "train" or "t10k".
pub fn read_images(directory: &str, set: &str) -> Result<Images, Failure> {
    let (shape, data) = read_idx(&Path::new(directory).join(format!("{set}-images-idx3-ubyte.gz")))?;
    let (label_shape, labels) = read_idx(&Path::new(directory).join(format!("{set}-labels-idx1-ubyte.gz")))?;
    if shape.len() != 3 || label_shape != [shape[0]] {
        return Err(format!("{directory}: images and labels of set {set} do not fit together").into());
    }
    Ok(Images { count: shape[0], pixels: shape[1] * shape[2], data, labels })
}
