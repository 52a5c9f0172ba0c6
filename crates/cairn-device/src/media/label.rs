//! Label of a tier: the last page of its file or device. It names the owner (docs/FORMAT.md).
//!
//! Invariant: a page that differs in any byte from what this version would write is not a label.
//!
//! Does not read or write files.

use cairn_core::MEDIA_BLOCK_BYTES;
use cairn_nvme::claim::Holder;
use cairn_platform::checksum;

const PAGE: usize = MEDIA_BLOCK_BYTES;
/// Magic of a label: "cairntr1".
const MAGIC: [u8; 8] = *b"cairntr1";
/// Label versions: without a claim, with a claim, and with the start since which the tier is in its
/// known state, with or without a claim.
const VERSION: u32 = 1;
const VERSION_CLAIMED: u32 = 2;
const VERSION_SINCE: u32 = 3;
// Field offsets in a label.
const AT_VERSION: usize = 8;
const AT_BYTES: usize = 16;
const AT_IDENTITY: usize = 24;
const AT_HOST: usize = 40;
const AT_KEY: usize = 56;
const AT_GENERATION: usize = 64;
const AT_START: usize = 72;
const AT_CHECKSUM: usize = PAGE - 4;

/// Identity of a tier: no two tiers share one.
pub type Identity = [u8; 16];

/// Content of a label.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Label {
    /// Size of the tier in bytes.
    pub bytes: u64,
    /// Identity of the tier.
    pub identity: Identity,
    /// Machine that has claimed the tier, where the label alone records that.
    pub claim: Option<Claimed>,
    /// Start of the target's machine in which the tier was made or recovered; zeros if that machine
    /// does not report its starts.
    pub start: [u8; 16],
}

/// Owner of a tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claimed {
    /// The machine.
    pub holder: Holder,
    /// Number of owners so far, the current one included; never 0.
    pub generation: u64,
}

/// Returns an identity as the two words that metadata use for it.
pub fn words(identity: &Identity) -> [u64; 2] {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    let (first, second) = identity.split_at(8);
    [word(first), word(second)]
}

/// Returns the page for a label.
pub fn encode(label: &Label) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    page[..MAGIC.len()].copy_from_slice(&MAGIC);
    let version = match label.claim {
        _ if label.start != [0; 16] => VERSION_SINCE,
        Some(_) => VERSION_CLAIMED,
        None => VERSION,
    };
    page[AT_VERSION..][..4].copy_from_slice(&version.to_le_bytes());
    page[AT_BYTES..][..8].copy_from_slice(&label.bytes.to_le_bytes());
    page[AT_IDENTITY..][..16].copy_from_slice(&label.identity);
    if let Some(Claimed { holder, generation }) = label.claim {
        page[AT_HOST..][..16].copy_from_slice(&holder.host);
        page[AT_KEY..][..8].copy_from_slice(&holder.key.to_le_bytes());
        page[AT_GENERATION..][..8].copy_from_slice(&generation.to_le_bytes());
    }
    page[AT_START..][..16].copy_from_slice(&label.start);
    let sum = checksum::crc32c(0, &page[..AT_CHECKSUM]);
    page[AT_CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
    page
}

/// Reason why a page is not the label of a tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// It is something else.
    Missing,
    /// A newer version wrote it.
    Newer,
    /// It is damaged, or the file has another size.
    Damaged,
}

impl Wrong {
    /// Describes the reason for people.
    pub fn describe(self) -> &'static str {
        match self {
            Wrong::Missing => "it is not a tier of Cairn: it has no label",
            Wrong::Newer => "it was made by a newer version of cairn; use that",
            Wrong::Damaged => "its label is damaged, or its size was changed; see cairn fsck",
        }
    }
}

/// Returns the label in a page. Errors: what is wrong with it. The caller checks that the label
/// fits the size of the file.
pub fn decode(page: &[u8; PAGE]) -> core::result::Result<Label, Wrong> {
    if page[..MAGIC.len()] != MAGIC {
        return Err(Wrong::Missing);
    }
    let versions = [VERSION, VERSION_CLAIMED, VERSION_SINCE].map(u32::to_le_bytes);
    if !versions.iter().any(|version| page[AT_VERSION..].starts_with(version)) {
        return Err(Wrong::Newer);
    }
    let number = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&page[at..][..8]);
        u64::from_le_bytes(bytes)
    };
    let identity = |at: usize| {
        let mut identity = Identity::default();
        identity.copy_from_slice(&page[at..][..16]);
        identity
    };
    let claim = Some(Claimed {
        holder: Holder { host: identity(AT_HOST), key: number(AT_KEY) },
        generation: number(AT_GENERATION),
    });
    let claim = claim.filter(|claim| claim.generation > 0);
    let (bytes, start) = (number(AT_BYTES), identity(AT_START));
    let label = Label { bytes, identity: identity(AT_IDENTITY), claim, start };
    match *page == encode(&label) {
        true => Ok(label),
        false => Err(Wrong::Damaged),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_is_read_back_and_any_other_page_is_refused() {
        let holder = Holder { host: *b"a machine's name", key: 1 << 40 };
        let claims = [None, Some(Claimed { holder, generation: 3 })];
        for (claim, start) in claims.into_iter().flat_map(|one| [(one, [0; 16]), (one, [7; 16])]) {
            let label = Label { bytes: 1 << 20, identity: *b"0123456789abcdef", claim, start };
            let page = encode(&label);
            assert_eq!(decode(&page), Ok(label));
            for at in 0..PAGE {
                let mut other = page;
                other[at] ^= 1;
                assert!(decode(&other).is_err(), "{at}");
            }
            let mut newer = page;
            newer[AT_VERSION] = 4;
            assert_eq!(decode(&newer), Err(Wrong::Newer));
        }
    }
}
