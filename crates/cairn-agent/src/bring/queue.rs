//! Queue of absent files to be staged in.
//!
//! Invariant: files that somebody waits for come first, in the order in which the waits were
//! noticed. At most one thread has a file. A resting file is taken only after somebody waits for
//! it, or says that it will be read.

use cairn_core::InodeId;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use crate::model::protocol::Bringing;
use cairn_job::file::path::FilePath;

/// A file in one of several namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Index of the namespace.
    pub volume: usize,
    /// Inode of the file.
    pub inode: InodeId,
}

/// An absent file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Identity of the file.
    pub key: Key,
    /// Last known path, for messages.
    pub path: FilePath,
    /// Length of its data.
    pub bytes: u64,
    /// CRC32C of its data.
    pub crc32c: u32,
    /// Whether a program says that it will read the file.
    pub will_be_read: bool,
}

/// Absent files, and those that somebody waits for.
#[derive(Debug, Default)]
pub struct Queue {
    waiting: BTreeMap<i64, Item>,
    places: HashMap<Key, i64>,
    /// Files that are staged in only if somebody waits for them, or says that they will be read.
    resting: HashMap<Key, Item>,
    next_place: i64,
    /// Place of the file that was last preferred to all others.
    front: i64,
    /// Waiting files that go first.
    first: VecDeque<Key>,
    /// Files that somebody waits for, until they are done.
    wanted: HashSet<Key>,
    /// Files that a thread has, with their lengths.
    taken: HashMap<Key, u64>,
    takings: u64,
    has_ended: bool,
}

impl Queue {
    /// Adds a file at the end. Does nothing if the queue or a thread has it.
    pub fn add(&mut self, item: Item) {
        if self.taken.contains_key(&item.key) || self.places.contains_key(&item.key) {
            return;
        }
        self.resting.remove(&item.key);
        self.places.insert(item.key, self.next_place);
        self.waiting.insert(self.next_place, item);
        self.next_place += 1;
    }

    /// Adds a file that is to be staged in only if somebody waits for it, or says that it will be
    /// read. Does nothing if the queue or a thread has it.
    pub fn rest(&mut self, item: Item) {
        if !self.taken.contains_key(&item.key) && !self.places.contains_key(&item.key) {
            self.resting.insert(item.key, item);
        }
    }

    /// Lets all files rest that nobody waits for and that no thread has, unless they will be read.
    pub fn rest_unasked(&mut self) {
        let is_asked = |item: &Item| item.will_be_read || self.wanted.contains(&item.key);
        let places = self.waiting.iter().filter(|(_, item)| !is_asked(item));
        for place in places.map(|(place, _)| *place).collect::<Vec<_>>() {
            let Some(item) = self.waiting.remove(&place) else { continue };
            self.places.remove(&item.key);
            self.resting.insert(item.key, item);
        }
    }

    /// Whether files rest.
    pub fn has_resting(&self) -> bool {
        !self.resting.is_empty()
    }

    /// Moves the files for which `will_be_read` holds before all others that nobody waits for,
    /// those that rest included.
    pub fn prefer(&mut self, will_be_read: impl Fn(&Item) -> bool) {
        let woken: Vec<Item> =
            self.resting.values().filter(|item| will_be_read(item)).cloned().collect();
        woken.into_iter().for_each(|item| self.add(item));
        let preferred = self.waiting.iter().filter(|(_, item)| will_be_read(item));
        let places: Vec<i64> = preferred.map(|(place, _)| *place).collect();
        for place in places.into_iter().rev() {
            let Some(mut item) = self.waiting.remove(&place) else { continue };
            item.will_be_read = true;
            self.front -= 1;
            self.places.insert(item.key, self.front);
            self.waiting.insert(self.front, item);
        }
    }

    /// Records that somebody waits for a file. Returns false if neither the queue nor a thread has
    /// it.
    pub fn want(&mut self, key: Key) -> bool {
        if let Some(item) = self.resting.remove(&key) {
            self.add(item);
        }
        let is_waiting = self.places.contains_key(&key);
        if !is_waiting && !self.taken.contains_key(&key) {
            return false;
        }
        if self.wanted.insert(key) && is_waiting {
            self.first.push_back(key);
        }
        true
    }

    /// Whether somebody waits for a file.
    pub fn is_wanted(&self, key: Key) -> bool {
        self.wanted.contains(&key)
    }

    /// Takes the next file.
    pub fn take(&mut self) -> Option<Item> {
        let taken = self.take_wanted();
        taken.or_else(|| {
            let (_, item) = self.waiting.pop_first()?;
            self.note_taken(item)
        })
    }

    /// Takes the next file that somebody waits for.
    pub fn take_wanted(&mut self) -> Option<Item> {
        loop {
            let key = self.first.pop_front()?;
            // A thread may have it already.
            let place = self.places.get(&key).copied();
            if let Some(item) = place.and_then(|place| self.waiting.remove(&place)) {
                return self.note_taken(item);
            }
        }
    }

    fn note_taken(&mut self, item: Item) -> Option<Item> {
        self.places.remove(&item.key);
        self.taken.insert(item.key, item.bytes);
        self.takings += 1;
        Some(item)
    }

    /// Whether somebody waits for a file that no thread has.
    pub fn is_awaited(&self) -> bool {
        self.first.iter().any(|key| self.places.contains_key(key))
    }

    /// Number of times that a thread took a file.
    pub fn takings(&self) -> u64 {
        self.takings
    }

    /// Records that a thread is done with a file.
    pub fn done(&mut self, key: Key) {
        self.taken.remove(&key);
        self.wanted.remove(&key);
    }

    /// Returns the counts of what is left, failures and resting files excluded.
    pub fn left(&self) -> Bringing {
        let waiting = self.waiting.values().map(|item| item.bytes);
        Bringing {
            files: (self.waiting.len() + self.taken.len()) as u64,
            bytes: waiting.chain(self.taken.values().copied()).sum(),
            waited_for: self.wanted.len() as u64,
            ..Bringing::default()
        }
    }

    /// Ends the queue: nothing more is to be taken.
    pub fn end(&mut self) {
        self.has_ended = true;
    }

    /// Whether the queue has ended.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(inode: u32) -> Key {
        Key { volume: 0, inode: InodeId(inode) }
    }

    fn queue(inodes: &[u32]) -> Queue {
        let mut queue = Queue::default();
        for &inode in inodes {
            let path = FilePath::parse(inode.to_string().as_bytes()).expect("a path");
            queue.add(Item {
                key: key(inode),
                path,
                bytes: u64::from(inode),
                crc32c: 0,
                will_be_read: false,
            });
        }
        queue
    }

    fn taken(item: Option<Item>) -> Option<u32> {
        item.map(|item| item.key.inode.0)
    }

    #[test]
    fn what_somebody_waits_for_is_taken_first_and_nothing_twice() {
        let mut queue = queue(&[1, 2, 3, 4]);
        assert_eq!(taken(queue.take()), Some(1));
        assert_eq!(queue.take_wanted(), None);
        assert!(queue.want(key(4)) && queue.want(key(3)) && queue.want(key(4)));
        assert!(queue.want(key(1)), "it is under way");
        assert!(!queue.want(key(9)));
        let left = queue.left();
        assert_eq!((left.files, left.bytes, left.waited_for), (4, 10, 3));
        assert_eq!(taken(queue.take_wanted()), Some(4));
        assert!(queue.is_awaited());
        assert_eq!(taken(queue.take()), Some(3));
        assert!(!queue.is_awaited());
        assert_eq!(taken(queue.take()), Some(2));
        assert_eq!(queue.takings(), 4);
        assert_eq!((queue.take(), queue.take_wanted()), (None, None));
        for inode in 1..=4 {
            queue.done(key(inode));
        }
        let left = queue.left();
        assert_eq!((left.files, left.bytes, left.waited_for), (0, 0, 0));
    }

    #[test]
    fn what_will_be_read_comes_before_the_rest_in_its_order() {
        let mut queue = queue(&[1, 2, 3, 4, 5]);
        assert!(queue.want(key(5)));
        queue.prefer(|item| [2, 4].contains(&item.bytes));
        queue.prefer(|item| item.bytes == 3);
        let order: Vec<u32> = std::iter::from_fn(|| taken(queue.take())).collect();
        assert_eq!(order, [5, 3, 2, 4, 1]);
    }

    #[test]
    fn resting_file_is_taken_only_after_somebody_waits_for_it_or_will_read_it() {
        let mut queue = queue(&[1]);
        for item in [2, 3, 4].map(|inode| Item { key: key(inode), ..queue.waiting[&0].clone() }) {
            queue.rest(item);
        }
        assert_eq!((queue.left().files, queue.has_resting()), (1, true));
        assert_eq!(taken(queue.take()), Some(1));
        queue.rest(Item { key: key(1), ..queue.resting[&key(2)].clone() });
        assert_eq!(taken(queue.take()), None);
        assert!(queue.want(key(3)));
        assert_eq!(taken(queue.take_wanted()), Some(3));
        queue.prefer(|item| item.key == key(4));
        assert_eq!((taken(queue.take()), taken(queue.take())), (Some(4), None));
        queue.done(key(1));
        assert!(!queue.want(key(1)), "it did not rest while a thread had it");
        assert!(queue.has_resting());
    }

    #[test]
    fn what_nobody_asks_for_rests_alone() {
        let mut queue = queue(&[1, 2, 3, 4]);
        assert!(queue.want(key(2)));
        queue.prefer(|item| item.bytes == 3);
        assert_eq!(taken(queue.take()), Some(2));
        queue.rest_unasked();
        assert_eq!(queue.left().files, 2, "one is under way, one will be read");
        assert_eq!((taken(queue.take()), taken(queue.take())), (Some(3), None));
        assert!(queue.want(key(4)));
        assert_eq!(taken(queue.take()), Some(4));
    }

    #[test]
    fn file_that_could_not_be_had_is_added_again() {
        let mut queue = queue(&[1, 2]);
        let first = queue.take().expect("there are two");
        queue.add(first.clone());
        assert_eq!(queue.left().files, 2, "it is under way");
        queue.done(first.key);
        assert!(!queue.want(first.key));
        queue.add(first);
        assert!(queue.want(key(1)));
        assert_eq!(taken(queue.take()), Some(1));
        assert_eq!(taken(queue.take()), Some(2));
    }
}
