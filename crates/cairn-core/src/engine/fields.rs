//! Named fields of records: a whole word, its high or low 32 bits, or a word that is a time.
//!
//! A record is a `Copy` struct that knows its first word. Its accessors take the transaction they
//! act in, so nothing ever borrows shared memory.

/// Defines accessors `get`/`set` for the fields of a record type with a field `at`.
macro_rules! fields {
    ($record:ident { $( $get:ident, $set:ident: $part:ident $word:literal; )* }) => {
        impl $record {
            $( fields!(@one $get $set $part $word); )*
        }
    };
    (@one $get:ident $set:ident word $word:literal) => {
        pub(crate) fn $get(self, tx: &$crate::engine::transaction::Transaction) -> u64 {
            tx.get(self.at + $word)
        }
        #[allow(dead_code)]
        pub(crate) fn $set(self, tx: &mut $crate::engine::transaction::Transaction, value: u64) {
            tx.set(self.at + $word, value);
        }
    };
    (@one $get:ident $set:ident time $word:literal) => {
        pub(crate) fn $get(self, tx: &$crate::engine::transaction::Transaction) -> $crate::format::types::Timestamp {
            $crate::format::types::Timestamp::from_bits(tx.get(self.at + $word))
        }
        #[allow(dead_code)]
        pub(crate) fn $set(
            self,
            tx: &mut $crate::engine::transaction::Transaction,
            time: $crate::format::types::Timestamp,
        ) {
            tx.set(self.at + $word, time.to_bits());
        }
    };
    (@one $get:ident $set:ident low $word:literal) => {
        pub(crate) fn $get(self, tx: &$crate::engine::transaction::Transaction) -> u32 {
            tx.get(self.at + $word) as u32
        }
        #[allow(dead_code)]
        pub(crate) fn $set(self, tx: &mut $crate::engine::transaction::Transaction, value: u32) {
            let word = tx.get(self.at + $word);
            tx.set(self.at + $word, word >> 32 << 32 | u64::from(value));
        }
    };
    (@one $get:ident $set:ident high $word:literal) => {
        pub(crate) fn $get(self, tx: &$crate::engine::transaction::Transaction) -> u32 {
            (tx.get(self.at + $word) >> 32) as u32
        }
        #[allow(dead_code)]
        pub(crate) fn $set(self, tx: &mut $crate::engine::transaction::Transaction, value: u32) {
            let word = tx.get(self.at + $word);
            tx.set(self.at + $word, word & 0xffff_ffff | u64::from(value) << 32);
        }
    };
}
pub(crate) use fields;
