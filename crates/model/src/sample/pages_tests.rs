use super::*;

fn ids(range: std::ops::Range<u32>) -> Vec<u32> {
    range.collect()
}

/// Puts a sequence into the cache as a scheduler does, and returns the pages that it holds.
fn fill(cache: &mut PageCache, adapter: u64, tokens: &[u32]) -> Vec<u32> {
    let hit = cache.look_up(adapter, tokens, tokens.len());
    let mut pages = hit.pages.clone();
    let mut place = hit.place.unwrap();
    if let Some((page, _)) = hit.partial {
        cache.release(page);
    }
    let rest = &tokens[pages.len() * PAGE_TOKENS..];
    for chunk in rest.chunks(PAGE_TOKENS) {
        let page = cache.allocate().unwrap();
        if chunk.len() == PAGE_TOKENS {
            pages.push(cache.insert_full(&mut place, chunk, page));
        } else {
            cache.insert_partial(place, chunk, page);
            pages.push(page);
        }
    }
    pages
}

#[test]
fn a_second_request_takes_the_full_pages_and_copies_the_last() {
    let mut cache = PageCache::new(20);
    cache.open(0);
    let prompt = ids(0..40);
    let first = fill(&mut cache, 0, &prompt);
    assert_eq!(first.len(), 3);

    let hit = cache.look_up(0, &prompt, 39);
    assert_eq!(hit.pages, first[..2]);
    assert_eq!(hit.partial, Some((first[2], 7)));
    assert_eq!(hit.n_tokens(), 39);
    cache.release_hit(&hit);

    // A limit within a full page makes that page one to copy.
    let hit = cache.look_up(0, &prompt[..32], 31);
    assert_eq!(hit.pages, first[..1]);
    assert_eq!(hit.partial, Some((first[1], 15)));
    cache.release_hit(&hit);

    // Another text with the same beginning.
    let mut other = ids(0..20);
    other.extend([99; 20]);
    let hit = cache.look_up(0, &other, 39);
    assert_eq!(hit.pages, first[..1]);
    assert_eq!(hit.partial, Some((first[1], 4)));
    cache.release_hit(&hit);

    cache.release_all(&first);
    assert_eq!(cache.n_available(), cache.capacity());
    assert_eq!(cache.n_idle(), 3);
}

#[test]
fn adapters_do_not_share() {
    let mut cache = PageCache::new(20);
    cache.open(0);
    cache.open(7);
    let prompt = ids(0..40);
    let pages = fill(&mut cache, 0, &prompt);
    assert_eq!(cache.look_up(7, &prompt, 39).n_tokens(), 0);
    assert_eq!(cache.look_up(8, &prompt, 39).place, None);
    let other = fill(&mut cache, 7, &prompt);
    assert!(pages.iter().all(|page| !other.contains(page)));
    cache.close(7);
    assert_eq!(cache.look_up(7, &prompt, 39).n_tokens(), 0);
    cache.release_all(&other);
    assert_eq!(cache.n_idle(), 0);
    cache.release_all(&pages);
    assert_eq!(cache.n_idle(), 3);
}

#[test]
fn equal_pages_become_one() {
    let mut cache = PageCache::new(20);
    cache.open(0);
    let tokens = ids(0..16);
    let root = cache.look_up(0, &[], 0).place.unwrap();
    let (a, b) = (cache.allocate().unwrap(), cache.allocate().unwrap());
    let (mut place_a, mut place_b) = (root, root);
    assert_eq!(cache.insert_full(&mut place_a, &tokens, a), a);
    assert_eq!(cache.insert_full(&mut place_b, &tokens, b), a);
    assert_eq!(place_a, place_b);
    assert_eq!(cache.n_available(), cache.capacity() - 1);
    cache.release(a);
    cache.release(a);
    assert_eq!(cache.n_available(), cache.capacity());
}

#[test]
fn a_page_goes_on_filling_behind_what_is_shared() {
    let mut cache = PageCache::new(20);
    cache.open(0);
    let tokens = ids(0..16);
    let mut place = cache.look_up(0, &[], 0).place.unwrap();
    let page = cache.allocate().unwrap();
    cache.insert_partial(place, &tokens[..5], page);
    cache.insert_partial(place, &tokens[..9], page);
    let hit = cache.look_up(0, &tokens, 15);
    assert_eq!(hit.partial, Some((page, 9)));
    cache.release_hit(&hit);
    assert_eq!(cache.insert_full(&mut place, &tokens, page), page);
    let hit = cache.look_up(0, &tokens, 16);
    assert_eq!(
        (hit.pages.as_slice(), hit.partial),
        ([page].as_slice(), None)
    );
    cache.release_hit(&hit);
    cache.release(page);
    assert_eq!((cache.n_idle(), cache.n_available()), (1, 19));
}

#[test]
fn the_least_recently_used_leaf_goes_first_and_used_pages_never() {
    let mut cache = PageCache::new(7);
    cache.open(0);
    let old = fill(&mut cache, 0, &ids(0..32));
    cache.release_all(&old);
    let recent = fill(&mut cache, 0, &ids(100..132));
    cache.release_all(&recent);
    let used = fill(&mut cache, 0, &ids(200..232));
    assert_eq!(cache.n_available(), 4);

    assert_eq!(cache.allocate(), Some(old[1]));
    assert_eq!(cache.look_up(0, &ids(0..32), 32).pages, old[..1]);
    // The page just looked up is held now.
    assert_eq!(cache.allocate(), Some(recent[1]));
    assert_eq!(cache.allocate(), Some(recent[0]));
    assert_eq!(cache.allocate(), None);
    let hit = cache.look_up(0, &ids(200..232), 32);
    assert_eq!(hit.pages, used);
}

#[test]
fn after_clearing_nothing_is_found_and_nothing_is_lost() {
    let mut cache = PageCache::new(9);
    cache.open(0);
    let used = fill(&mut cache, 0, &ids(0..40));
    let idle = fill(&mut cache, 0, &ids(100..140));
    let hit = cache.look_up(0, &ids(0..16), 16);
    let mut stale = hit.place.unwrap();
    cache.release_hit(&hit);
    cache.release_all(&idle);
    cache.clear();
    assert_eq!(cache.look_up(0, &ids(0..40), 40).n_tokens(), 0);
    assert_eq!((cache.n_idle(), cache.n_available()), (0, 5));
    // A sequence from before keeps its pages but no longer adds to the tree.
    let page = cache.allocate().unwrap();
    assert_eq!(cache.insert_full(&mut stale, &ids(16..32), page), page);
    assert_eq!(cache.look_up(0, &ids(0..32), 32).n_tokens(), 0);
    cache.release(page);
    cache.release_all(&used);
    assert_eq!((cache.n_idle(), cache.n_available()), (0, 8));
}

/// Thousands of random requests against a plain model of what must hold.
#[test]
fn random_use_keeps_the_books() {
    let mut state = 7u64;
    let mut random = move |n: u64| {
        state = crate::random::mix(state);
        state % n
    };
    let mut cache = PageCache::new(40);
    cache.open(0);
    cache.open(1);
    let mut held: Vec<Vec<u32>> = Vec::new();
    for round in 0..20_000u32 {
        let n_used: std::collections::HashSet<u32> = held.iter().flatten().copied().collect();
        assert_eq!(cache.n_available(), cache.capacity() - n_used.len());
        if !held.is_empty() && (cache.n_available() < 6 || random(2) == 0) {
            let pages = held.swap_remove(random(held.len() as u64) as usize);
            cache.release_all(&pages);
            continue;
        }
        let tokens: Vec<u32> = (0..1 + random(80))
            .map(|i| if i % 16 == 15 { random(3) as u32 } else { 1 })
            .collect();
        held.push(fill(&mut cache, random(2), &tokens));
        if round % 997 == 0 {
            cache.clear();
        }
    }
    for pages in held {
        cache.release_all(&pages);
    }
    assert_eq!(cache.n_available(), cache.capacity());
    cache.clear();
    assert_eq!((cache.n_idle(), cache.free.len()), (0, cache.capacity()));
    // Both trees are down to their roots.
    assert_eq!(cache.nodes.iter().flatten().count(), 2);
}
