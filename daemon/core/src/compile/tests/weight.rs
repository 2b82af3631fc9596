use super::slot_counts;
use crate::state::entries::MAX_VIEW_SLOTS;

#[test]
fn equal_weights_take_one_slot_each() {
    assert_eq!(*slot_counts(&[100, 100, 100]), [1, 1, 1]);
    assert_eq!(*slot_counts(&[]), [] as [u16; 0]);
}

#[test]
fn shares_are_exact_where_they_have_a_small_form() {
    assert_eq!(*slot_counts(&[10, 30]), [1, 3]);
    assert_eq!(*slot_counts(&[1, 1000]), [1, 1000]);
}

/// Large coprime weights must not use up the slots map.
#[test]
fn shares_are_close_where_they_have_no_small_form() {
    let counts = slot_counts(&[65_535, 65_534, 1]);
    let total: u32 = counts.iter().map(|&c| u32::from(c)).sum();
    assert!(total <= 1_024, "{counts:?}");
    assert!(counts[0].abs_diff(counts[1]) <= 1 && counts[2] == 1, "{counts:?}");
}

#[test]
fn no_view_is_longer_than_its_count_can_say() {
    let counts = slot_counts(&vec![1; MAX_VIEW_SLOTS + 5]);
    assert_eq!(counts.iter().map(|&c| usize::from(c)).sum::<usize>(), MAX_VIEW_SLOTS);
    let weighted: Vec<u16> = (0..60_000).map(|i| if i % 2 == 0 { 7 } else { 3 }).collect();
    let counts = slot_counts(&weighted);
    assert!(counts.iter().map(|&c| usize::from(c)).sum::<usize>() <= MAX_VIEW_SLOTS);
    assert!(counts.iter().all(|&c| c >= 1));
}
