//! Bytes shared by many images: a page is copied when one image changes it.
//!
//! A clone costs one reference count per 128 KiB, so a crash image costs only its differences.

use std::ops::Range;
use std::sync::Arc;

const PAGE_BYTES: usize = 4096;
const CHUNK_PAGES: usize = 32;

type Page = [u8; PAGE_BYTES];
type Chunk = [Arc<Page>; CHUNK_PAGES];

/// Bytes in a whole number of pages. A range outside is a bug of the caller.
#[derive(Clone)]
pub(super) struct Pages {
    bytes: u64,
    chunks: Vec<Arc<Chunk>>,
}

/// Part of an access that lies in one page.
struct Piece {
    page: usize,
    /// Offset of its first byte in the page.
    at: usize,
    /// Range in the buffer.
    buffer: Range<usize>,
}

fn pieces(offset: u64, length: usize) -> impl Iterator<Item = Piece> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let place = offset as usize + done;
        let (page, at) = (place / PAGE_BYTES, place % PAGE_BYTES);
        let buffer = done..length.min(done + PAGE_BYTES - at);
        done = buffer.end;
        (!buffer.is_empty()).then_some(Piece { page, at, buffer })
    })
}

/// Stores into a page. A shared page that is overwritten as a whole is not copied first.
fn store(page: &mut Arc<Page>, at: usize, source: &[u8]) {
    match <&Page>::try_from(source) {
        Ok(whole) if Arc::get_mut(page).is_none() => *page = Arc::new(*whole),
        _ => Arc::make_mut(page)[at..][..source.len()].copy_from_slice(source),
    }
}

impl Pages {
    /// Returns `bytes` bytes, all of them `fill`.
    pub fn filled(bytes: u64, fill: u8) -> Pages {
        assert_eq!(bytes % PAGE_BYTES as u64, 0, "media are a whole number of pages");
        let page = Arc::new([fill; PAGE_BYTES]);
        let chunk: Arc<Chunk> = Arc::new(std::array::from_fn(|_| page.clone()));
        let chunks = bytes.div_ceil((PAGE_BYTES * CHUNK_PAGES) as u64);
        Pages { bytes, chunks: vec![chunk; chunks as usize] }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn read(&self, offset: u64, target: &mut [u8]) {
        for Piece { page, at, buffer } in pieces(offset, target.len()) {
            let length = buffer.len();
            target[buffer].copy_from_slice(&self.page(page)[at..][..length]);
        }
    }

    pub fn write(&mut self, offset: u64, source: &[u8]) {
        for Piece { page, at, buffer } in pieces(offset, source.len()) {
            store(self.page_mut(page), at, &source[buffer]);
        }
    }

    /// Takes over the pages of `other` that the range touches.
    pub fn adopt(&mut self, other: &Pages, offset: u64, length: usize) {
        for Piece { page, .. } in pieces(offset, length) {
            *self.page_mut(page) = other.page(page).clone();
        }
    }

    /// Flips one bit; bits are counted from the lowest of byte 0.
    pub fn flip(&mut self, bit: u64) {
        let mut byte = [0];
        self.read(bit / 8, &mut byte);
        self.write(bit / 8, &[byte[0] ^ 1 << (bit % 8)]);
    }

    fn page(&self, page: usize) -> &Arc<Page> {
        &self.chunks[page / CHUNK_PAGES][page % CHUNK_PAGES]
    }

    fn page_mut(&mut self, page: usize) -> &mut Arc<Page> {
        &mut Arc::make_mut(&mut self.chunks[page / CHUNK_PAGES])[page % CHUNK_PAGES]
    }
}
