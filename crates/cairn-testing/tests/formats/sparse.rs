//! Images of media as files: a text that describes the image, then the sectors that are not all
//! zeros.
//!
//! ```text
//! text, an empty line  then per piece: offset (8 bytes), length (8 bytes), bytes
//! ```

use cairn_core::{MEDIA_BLOCK_BYTES, Media, SECTOR_BYTES};
use cairn_testing::faulty::{ByteMedia, Image};

const SIZE: &str = "Bytes: ";

/// Returns the file of `image`. `about` is one paragraph.
pub fn pack(image: &Image, about: &str) -> Vec<u8> {
    let mut file = format!("{about}\n{SIZE}{}\n\n", image.bytes()).into_bytes();
    let bytes = image.to_vec();
    let mut pieces: Vec<(usize, usize)> = Vec::new();
    for (sector, content) in bytes.chunks(SECTOR_BYTES).enumerate() {
        let start = sector * SECTOR_BYTES;
        match pieces.last_mut() {
            _ if content.iter().all(|&byte| byte == 0) => {}
            Some((_, end)) if *end == start => *end += content.len(),
            _ => pieces.push((start, start + content.len())),
        }
    }
    for (start, end) in pieces {
        file.extend((start as u64).to_le_bytes());
        file.extend(((end - start) as u64).to_le_bytes());
        file.extend(&bytes[start..end]);
    }
    file
}

/// Returns the image in a file.
pub fn unpack(file: &[u8]) -> Image {
    let text_bytes = file.windows(2).position(|two| two == b"\n\n").expect("there is a text") + 2;
    let text = std::str::from_utf8(&file[..text_bytes]).expect("the text is one");
    let size = text.lines().find_map(|line| line.strip_prefix(SIZE)).expect("it says the size");
    let image = Image::filled(size.parse().expect("it is a number"), 0);
    assert_eq!(image.bytes() % MEDIA_BLOCK_BYTES as u64, 0);
    let mut rest = &file[text_bytes..];
    while !rest.is_empty() {
        let (offset, length) = (number(rest, 0), number(rest, 8) as usize);
        let (piece, behind) = rest[16..].split_at(length);
        image.write_bytes(offset, piece).expect("the piece lies inside");
        rest = behind;
    }
    image
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}
