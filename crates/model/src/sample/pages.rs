//! Pages of the key-value cache: who holds them, and which tokens they are known to hold.
//!
//! A page is held by the sequences that use it and, once its tokens are computed, by a tree over
//! token ids: one tree per adapter, a full page per node, and at the leaves pages that are filled
//! in part. A new request takes the full pages that its ids lead to and shares them; where it
//! leaves the tree within a page, that page is copied and goes on as its own. Pages that only the
//! tree holds are given up, the least recently used leaf first, when memory is asked for.
//!
//! Ids are compared, not hashes of them, so a hit is never another text.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
};

use crate::device::PAGE_TOKENS;

/// The page that nobody owns: rows that only pad a batch write to it.
pub const PADDING_PAGE: u32 = 0;

/// Where a sequence stands in the tree: the node of its last page there. Stale once the tree was
/// emptied or its adapter closed; a stale place takes no further pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    node: u32,
    generation: u64,
}

/// What the cache holds of a request's ids. Every page in it is held for the caller.
#[derive(Debug, PartialEq, Eq)]
pub struct Hit {
    /// Full pages from the start on, shared.
    pub pages: Vec<u32>,
    /// A page to copy, and how many of its first tokens are the next ones of the request.
    pub partial: Option<(u32, usize)>,
    /// Where to go on in the tree; `None` for an adapter that is not open.
    pub place: Option<Place>,
}

impl Hit {
    /// Tokens that need not be computed.
    pub fn n_tokens(&self) -> usize {
        self.pages.len() * PAGE_TOKENS + self.partial.map_or(0, |(_, n)| n)
    }
}

#[derive(Debug)]
struct Node {
    generation: u64,
    parent: Option<u32>,
    tokens: Box<[u32]>,
    page: u32,
    children: BTreeMap<Box<[u32]>, u32>,
    last_used: u64,
}

/// All pages of an engine, and the tree that knows what they hold.
#[derive(Debug)]
pub struct PageCache {
    n_holders: Vec<u32>,
    free: Vec<u32>,
    node_of: Vec<Option<u32>>,
    nodes: Vec<Option<Node>>,
    free_nodes: Vec<u32>,
    roots: HashMap<u64, u32>,
    evictable: BTreeSet<(u64, u32)>,
    n_idle: usize,
    clock: u64,
}

impl PageCache {
    /// A cache of `n_pages` pages, of which page 0 is [`PADDING_PAGE`].
    pub fn new(n_pages: usize) -> Self {
        PageCache {
            n_holders: vec![0; n_pages],
            free: (1..n_pages as u32).rev().collect(),
            node_of: vec![None; n_pages],
            nodes: Vec::new(),
            free_nodes: Vec::new(),
            roots: HashMap::new(),
            evictable: BTreeSet::new(),
            n_idle: 0,
            clock: 0,
        }
    }

    /// Pages that sequences can hold at most.
    pub fn capacity(&self) -> usize {
        self.n_holders.len().saturating_sub(1)
    }

    /// Pages that [`PageCache::allocate`] can give out now.
    pub fn n_available(&self) -> usize {
        self.free.len() + self.n_idle
    }

    /// Pages that only the tree holds.
    pub fn n_idle(&self) -> usize {
        self.n_idle
    }

    /// Starts a tree for an adapter; a tree that is open stays.
    pub fn open(&mut self, adapter: u64) {
        if !self.roots.contains_key(&adapter) {
            let root = self.add_node(None, Box::default(), PADDING_PAGE);
            self.roots.insert(adapter, root);
        }
    }

    /// Forgets what was computed with an adapter; pages in use stay with their sequences.
    pub fn close(&mut self, adapter: u64) {
        let Some(root) = self.roots.remove(&adapter) else {
            return;
        };
        let mut stack = vec![root];
        while let Some(id) = stack.pop() {
            if let Some(node) = self.take_node(id) {
                stack.extend(node.children.values());
                if node.parent.is_some() {
                    self.detach(id, node.page, node.last_used);
                }
            }
        }
    }

    /// Forgets everything that was computed; pages in use stay with their sequences.
    pub fn clear(&mut self) {
        let adapters: Vec<u64> = self.roots.keys().copied().collect();
        for adapter in adapters {
            self.close(adapter);
            self.open(adapter);
        }
    }

    /// A page for one holder, or `None` where all are in use.
    pub fn allocate(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            let &(_, oldest) = self.evictable.first()?;
            self.remove_leaf(oldest);
        }
        let page = self.free.pop()?;
        self.n_holders[page as usize] = 1;
        Some(page)
    }

    /// Gives up one hold of a page.
    pub fn release(&mut self, page: u32) {
        let holders = &mut self.n_holders[page as usize];
        debug_assert!(*holders > 0, "page {page} is released more often than held");
        *holders -= 1;
        match (*holders, self.node_of[page as usize]) {
            (0, _) => self.free.push(page),
            (1, Some(id)) => {
                self.n_idle += 1;
                let now = self.tick();
                let node = self.node_mut(id);
                node.last_used = now;
                if node.children.is_empty() {
                    self.evictable.insert((now, id));
                }
            }
            _ => {}
        }
    }

    /// Gives up one hold of each page, the last first, so that beginnings are kept longest.
    pub fn release_all(&mut self, pages: &[u32]) {
        for &page in pages.iter().rev() {
            self.release(page);
        }
    }

    /// What is known of the first `limit` of `tokens` under an adapter. The caller holds every
    /// page of the hit, the one to copy included.
    pub fn look_up(&mut self, adapter: u64, tokens: &[u32], limit: usize) -> Hit {
        let mut hit = Hit {
            pages: Vec::new(),
            partial: None,
            place: None,
        };
        let Some(&root) = self.roots.get(&adapter) else {
            return hit;
        };
        let tokens = &tokens[..limit.min(tokens.len())];
        let mut at = root;
        let mut chunks = tokens.chunks_exact(PAGE_TOKENS);
        let mut rest = tokens;
        for chunk in chunks.by_ref() {
            let Some(&child) = self.node(at).children.get(chunk) else {
                break;
            };
            at = child;
            hit.pages.push(self.node(at).page);
            rest = &rest[PAGE_TOKENS..];
        }
        hit.place = Some(self.place(at));
        let rest = &rest[..rest.len().min(PAGE_TOKENS)];
        hit.partial = self
            .longest_common(at, rest)
            .map(|(id, n)| (self.node(id).page, n));
        let held = hit
            .pages
            .iter()
            .copied()
            .chain(hit.partial.map(|(page, _)| page));
        for page in held.collect::<Vec<_>>() {
            self.hold(page);
        }
        hit
    }

    /// Gives back a hit that is not used.
    pub fn release_hit(&mut self, hit: &Hit) {
        if let Some((page, _)) = hit.partial {
            self.release(page);
        }
        self.release_all(&hit.pages);
    }

    /// Records that `page` holds `tokens`, which follow what `place` stands for, and moves `place`
    /// on. Returns the page that the holder of `page` holds from now on: another one where the
    /// tree already had these tokens, and `page` is released then.
    pub fn insert_full(&mut self, place: &mut Place, tokens: &[u32], page: u32) -> u32 {
        debug_assert_eq!(tokens.len(), PAGE_TOKENS);
        if !self.is_current(*place) {
            return page;
        }
        // What was recorded of the page when it was not full is a prefix of this.
        if let Some(partial) = self.node_of[page as usize] {
            self.remove_leaf(partial);
        }
        if let Some(&known) = self.node(place.node).children.get(tokens) {
            *place = self.place(known);
            let known_page = self.node(known).page;
            self.hold(known_page);
            self.release(page);
            return known_page;
        }
        let id = self.add_child(place.node, tokens, page);
        *place = self.place(id);
        page
    }

    /// Records that the first tokens of `page` are `tokens`, fewer than a page, which follow what
    /// `place` stands for. The holder may go on filling the page behind them.
    pub fn insert_partial(&mut self, place: Place, tokens: &[u32], page: u32) {
        debug_assert!(tokens.len() < PAGE_TOKENS);
        if tokens.is_empty() || !self.is_current(place) {
            return;
        }
        if let Some(shorter) = self.node_of[page as usize] {
            self.remove_leaf(shorter);
        }
        let known = self
            .longest_common(place.node, tokens)
            .is_some_and(|(_, n)| n == tokens.len());
        if !known {
            self.add_child(place.node, tokens, page);
        }
    }

    /// Adds a holder.
    fn hold(&mut self, page: u32) {
        let now = self.tick();
        let holders = &mut self.n_holders[page as usize];
        *holders += 1;
        let became_used = *holders == 2;
        if let Some(id) = self.node_of[page as usize] {
            let node = self.node_mut(id);
            let key = (node.last_used, id);
            node.last_used = now;
            if became_used {
                self.n_idle -= 1;
                self.evictable.remove(&key);
            }
        }
    }

    /// The child of a node that shares the longest beginning with `tokens`, and its length.
    fn longest_common(&self, node: u32, tokens: &[u32]) -> Option<(u32, usize)> {
        if tokens.is_empty() {
            return None;
        }
        // In lexicographic order the longest common beginning is with a neighbour.
        let children = &self.node(node).children;
        let above = children
            .range::<[u32], _>((Bound::Included(tokens), Bound::Unbounded))
            .next();
        let below = children
            .range::<[u32], _>((Bound::Unbounded, Bound::Excluded(tokens)))
            .next_back();
        above
            .into_iter()
            .chain(below)
            .map(|(key, &id)| (id, common_length(key, tokens)))
            .filter(|&(_, n)| n > 0)
            .max_by_key(|&(_, n)| n)
    }

    fn add_child(&mut self, parent: u32, tokens: &[u32], page: u32) -> u32 {
        let id = self.add_node(Some(parent), tokens.into(), page);
        let (was_leaf, key) = {
            let node = self.node_mut(parent);
            let was_leaf = node.children.is_empty();
            node.children.insert(tokens.into(), id);
            (was_leaf, (node.last_used, parent))
        };
        if was_leaf {
            self.evictable.remove(&key);
        }
        self.n_holders[page as usize] += 1;
        self.node_of[page as usize] = Some(id);
        id
    }

    /// Takes a leaf out of the tree and gives up the tree's hold of its page.
    fn remove_leaf(&mut self, id: u32) {
        let Some(node) = self.take_node(id) else {
            return;
        };
        debug_assert!(node.children.is_empty());
        self.detach(id, node.page, node.last_used);
        let Some(parent) = node.parent else {
            return;
        };
        let above = self.node_mut(parent);
        above.children.remove(&node.tokens);
        let key = (above.last_used, parent);
        let is_idle_leaf = above.children.is_empty()
            && above.parent.is_some()
            && self.n_holders[self.node(parent).page as usize] == 1;
        if is_idle_leaf {
            self.evictable.insert(key);
        }
    }

    /// Ends the tree's hold of a page whose node is gone.
    fn detach(&mut self, id: u32, page: u32, last_used: u64) {
        self.node_of[page as usize] = None;
        self.evictable.remove(&(last_used, id));
        let holders = &mut self.n_holders[page as usize];
        *holders -= 1;
        if *holders == 0 {
            self.n_idle -= 1;
            self.free.push(page);
        }
    }

    fn add_node(&mut self, parent: Option<u32>, tokens: Box<[u32]>, page: u32) -> u32 {
        let now = self.tick();
        let node = Node {
            generation: now,
            parent,
            tokens,
            page,
            children: BTreeMap::new(),
            last_used: now,
        };
        match self.free_nodes.pop() {
            Some(id) => {
                self.nodes[id as usize] = Some(node);
                id
            }
            None => {
                self.nodes.push(Some(node));
                (self.nodes.len() - 1) as u32
            }
        }
    }

    fn take_node(&mut self, id: u32) -> Option<Node> {
        let node = self.nodes[id as usize].take()?;
        self.free_nodes.push(id);
        Some(node)
    }

    fn node(&self, id: u32) -> &Node {
        self.nodes[id as usize]
            .as_ref()
            .expect("links of the tree lead to nodes")
    }

    fn node_mut(&mut self, id: u32) -> &mut Node {
        self.nodes[id as usize]
            .as_mut()
            .expect("links of the tree lead to nodes")
    }

    fn place(&self, node: u32) -> Place {
        Place {
            node,
            generation: self.node(node).generation,
        }
    }

    fn is_current(&self, place: Place) -> bool {
        self.nodes[place.node as usize]
            .as_ref()
            .is_some_and(|node| node.generation == place.generation)
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

fn common_length(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
#[path = "pages_tests.rs"]
mod tests;
