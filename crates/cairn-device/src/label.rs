//! The page behind the bytes of a tier's file: whose file this is (docs/FORMAT.md).
//!
//! Must stay true: a page that differs in any byte from what would be written today is no label.
//! Does not read or write files.

use cairn_core::MEDIA_BLOCK_BYTES;

use crate::checksum;

const PAGE: usize = MEDIA_BLOCK_BYTES;
/// Magic of a label: "cairntr1".
const MAGIC: [u8; 8] = *b"cairntr1";
/// Version of the label written by this build.
const VERSION: u32 = 1;
// Fields of the label, by their offsets.
const AT_VERSION: usize = 8;
const AT_BYTES: usize = 16;
const AT_IDENTITY: usize = 24;
const AT_CHECKSUM: usize = PAGE - 4;

/// What tells a tier from any other.
pub type Identity = [u8; 16];

/// The label of a tier of `bytes`.
pub fn encode(bytes: u64, identity: &Identity) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    page[..MAGIC.len()].copy_from_slice(&MAGIC);
    page[AT_VERSION..][..4].copy_from_slice(&VERSION.to_le_bytes());
    page[AT_BYTES..][..8].copy_from_slice(&bytes.to_le_bytes());
    page[AT_IDENTITY..][..16].copy_from_slice(identity);
    let sum = checksum::crc32c(0, &page[..AT_CHECKSUM]);
    page[AT_CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
    page
}

/// Why a page is not the label of a tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// It is something else.
    Missing,
    /// A later build wrote it.
    Newer,
    /// It is not as it was written, or the file is of another size.
    Damaged,
}

impl Wrong {
    /// The same for people.
    pub fn describe(self) -> &'static str {
        match self {
            Wrong::Missing => "it is not a tier of Cairn: it has no label",
            Wrong::Newer => "it was made by a newer version of cairn; use that",
            Wrong::Damaged => "its label is damaged, or its size was changed; see cairn fsck",
        }
    }
}

/// The identity in a label. Errors: what is wrong with it.
pub fn decode(page: &[u8; PAGE], bytes: u64) -> core::result::Result<Identity, Wrong> {
    if page[..MAGIC.len()] != MAGIC {
        return Err(Wrong::Missing);
    }
    if page[AT_VERSION..][..4] != VERSION.to_le_bytes() {
        return Err(Wrong::Newer);
    }
    let mut identity = Identity::default();
    identity.copy_from_slice(&page[AT_IDENTITY..][..16]);
    match *page == encode(bytes, &identity) {
        true => Ok(identity),
        false => Err(Wrong::Damaged),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_is_read_back_and_any_other_page_is_refused() {
        let identity = *b"0123456789abcdef";
        let page = encode(1 << 20, &identity);
        assert_eq!(decode(&page, 1 << 20), Ok(identity));
        assert_eq!(decode(&page, 1 << 21), Err(Wrong::Damaged));
        for at in 0..PAGE {
            let mut other = page;
            other[at] ^= 1;
            assert!(decode(&other, 1 << 20).is_err(), "{at}");
        }
        let mut newer = page;
        newer[AT_VERSION] += 1;
        assert_eq!(decode(&newer, 1 << 20), Err(Wrong::Newer));
    }
}
