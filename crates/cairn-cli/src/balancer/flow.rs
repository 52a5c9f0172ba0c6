//! Maximum flow from sources to sinks, along edges of unlimited capacity (E. A. Dinic, 1970).
//!
//! Invariant: a sink never loses flow, though its flow may come from other sources later. Therefore
//! capacities that are raised in small steps fill the sinks evenly, and edges that are added later
//! are used only if the earlier ones do not suffice.

use std::collections::VecDeque;

const FAR: u32 = u32::MAX;

/// An edge and its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Its source.
    pub source: u32,
    /// Its sink.
    pub sink: u32,
    /// Its flow.
    pub amount: u64,
}

/// Sources, sinks, and the flow between them.
#[derive(Clone, Debug)]
pub struct Flow {
    edges: Vec<Edge>,
    sources: Vec<End>,
    sinks: Vec<End>,
}

/// A source or a sink.
#[derive(Clone, Debug, Default)]
struct End {
    /// Remaining supply of a source, or remaining capacity of a sink.
    left: u64,
    edges: Vec<u32>,
    /// Number of edges from the nearest source with remaining supply, as of the last search.
    distance: u32,
    /// Number of edges that the current search has tried.
    tried: usize,
}

impl Flow {
    /// Creates sources with these supplies, and sinks without capacity.
    pub fn new(supplies: impl IntoIterator<Item = u64>, sinks: usize) -> Flow {
        let source = |left| End { left, ..End::default() };
        let sources = supplies.into_iter().map(source).collect();
        Flow { edges: Vec::new(), sources, sinks: vec![End::default(); sinks] }
    }

    /// Adds an edge from a source to a sink.
    pub fn add_edge(&mut self, source: u32, sink: u32) {
        let index = self.edges.len() as u32;
        self.edges.push(Edge { source, sink, amount: 0 });
        self.sources[source as usize].edges.push(index);
        self.sinks[sink as usize].edges.push(index);
    }

    /// Adds to the capacity of a sink.
    pub fn add_capacity(&mut self, sink: usize, more: u64) {
        self.sinks[sink].left += more;
    }

    /// Returns the remaining supply of all sources.
    pub fn left(&self) -> u64 {
        self.sources.iter().map(|source| source.left).sum()
    }

    /// Returns the edges with flow.
    pub fn edges(&self) -> impl Iterator<Item = Edge> {
        self.edges.iter().copied().filter(|edge| edge.amount > 0)
    }

    /// Increases the flow to its maximum.
    pub fn augment(&mut self) {
        while self.search() {
            for source in 0..self.sources.len() {
                while self.sources[source].left > 0 && self.push(source) {}
            }
        }
    }

    /// Computes the distance of everything from a source with remaining supply. Returns whether a
    /// sink with remaining capacity can be reached.
    fn search(&mut self) -> bool {
        for end in self.sources.iter_mut().chain(&mut self.sinks) {
            (end.distance, end.tried) = (FAR, 0);
        }
        let (mut queue, mut reached) = (VecDeque::new(), Vec::new());
        for (index, source) in self.sources.iter_mut().enumerate() {
            if source.left > 0 {
                source.distance = 0;
                queue.push_back(index);
            }
        }
        let mut is_reached = false;
        while let Some(source) = queue.pop_front() {
            let End { ref edges, distance, .. } = self.sources[source];
            for sink in edges.iter().map(|&edge| self.edges[edge as usize].sink as usize) {
                let sink = &mut self.sinks[sink];
                if sink.distance != FAR {
                    continue;
                }
                sink.distance = distance + 1;
                is_reached |= sink.left > 0;
                let edges = sink.edges.iter().map(|&edge| self.edges[edge as usize]);
                reached.extend(edges.filter(|edge| edge.amount > 0).map(|edge| edge.source));
            }
            for giver in reached.drain(..) {
                let giver_end = &mut self.sources[giver as usize];
                if giver_end.distance == FAR {
                    giver_end.distance = distance + 2;
                    queue.push_back(giver as usize);
                }
            }
        }
        is_reached
    }

    /// Sends flow along one of the shortest paths from `source`. Returns false if there is none
    /// left. A path follows an edge to a sink; if that sink is full, it goes back along another
    /// edge, whose source then finds another sink.
    fn push(&mut self, source: usize) -> bool {
        let mut path: Vec<u32> = Vec::new();
        loop {
            let is_at_sink = path.len() % 2 == 1;
            let at = match path.last() {
                None => source,
                Some(&edge) if is_at_sink => self.edges[edge as usize].sink as usize,
                Some(&edge) => self.edges[edge as usize].source as usize,
            };
            if is_at_sink && self.sinks[at].left > 0 {
                self.send(source, at, &path);
                return true;
            }
            let next = if is_at_sink { self.next_back(at) } else { self.next_forth(at) };
            match next {
                Some(edge) => path.push(edge),
                None => {
                    let Some(edge) = path.pop() else { return false };
                    let Edge { source, sink, .. } = self.edges[edge as usize];
                    match is_at_sink {
                        true => self.sources[source as usize].tried += 1,
                        false => self.sinks[sink as usize].tried += 1,
                    }
                }
            }
        }
    }

    fn next_forth(&mut self, source: usize) -> Option<u32> {
        let from = &mut self.sources[source];
        while let Some(&edge) = from.edges.get(from.tried) {
            if self.sinks[self.edges[edge as usize].sink as usize].distance == from.distance + 1 {
                return Some(edge);
            }
            from.tried += 1;
        }
        None
    }

    fn next_back(&mut self, sink: usize) -> Option<u32> {
        let from = &mut self.sinks[sink];
        while let Some(&edge) = from.edges.get(from.tried) {
            let Edge { source, amount, .. } = self.edges[edge as usize];
            if amount > 0 && self.sources[source as usize].distance == from.distance + 1 {
                return Some(edge);
            }
            from.tried += 1;
        }
        None
    }

    fn send(&mut self, source: usize, sink: usize, path: &[u32]) {
        let back = path.iter().skip(1).step_by(2).map(|&edge| self.edges[edge as usize].amount);
        let amount = back.fold(self.sources[source].left.min(self.sinks[sink].left), u64::min);
        self.sources[source].left -= amount;
        self.sinks[sink].left -= amount;
        for (place, &edge) in path.iter().enumerate() {
            let carried = &mut self.edges[edge as usize].amount;
            *carried = if place % 2 == 0 { *carried + amount } else { *carried - amount };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amounts(flow: &Flow) -> Vec<(u32, u32, u64)> {
        flow.edges().map(|edge| (edge.source, edge.sink, edge.amount)).collect()
    }

    #[test]
    fn full_sink_sends_its_source_elsewhere() {
        let mut flow = Flow::new([5, 5], 2);
        for (source, sink) in [(0, 0), (0, 1), (1, 0)] {
            flow.add_edge(source, sink);
        }
        flow.add_capacity(0, 5);
        flow.add_capacity(1, 5);
        flow.augment();
        assert_eq!(flow.left(), 0);
        assert_eq!(amounts(&flow), [(0, 1, 5), (1, 0, 5)]);
    }

    #[test]
    fn what_finds_no_room_is_left() {
        let mut flow = Flow::new([7, 2], 1);
        flow.add_edge(0, 0);
        flow.add_capacity(0, 4);
        flow.augment();
        assert_eq!(flow.left(), 5);
        flow.add_edge(1, 0);
        flow.add_capacity(0, 5);
        flow.augment();
        assert_eq!(amounts(&flow), [(0, 0, 7), (1, 0, 2)]);
    }

    #[test]
    fn ways_over_many_sinks_are_found() {
        // Source n reaches sinks n and n + 1; the last source reaches only the first sink. All flow
        // has to move on by one sink.
        let count = 50;
        let mut flow = Flow::new((0..=count).map(|_| 1), count as usize + 1);
        (0..count).for_each(|n| flow.add_edge(n, n));
        (0..=count as usize).for_each(|sink| flow.add_capacity(sink, 1));
        flow.augment();
        (0..count).for_each(|n| flow.add_edge(n, n + 1));
        flow.add_edge(count, 0);
        flow.augment();
        assert_eq!(flow.left(), 0);
        assert!(flow.edges().all(|edge| edge.amount == 1));
    }
}
