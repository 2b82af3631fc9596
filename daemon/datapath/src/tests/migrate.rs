use super::*;
use crate::versions::LAYOUT;

#[test]
fn every_layout_has_one_reader_and_todays_is_the_last() {
    let layouts: Vec<u32> = READERS.iter().map(|reader| reader.layout).collect();
    assert!(layouts.is_sorted_by(|a, b| a < b), "{layouts:?}");
    assert_eq!(layouts.last(), Some(&LAYOUT));
    assert!(reader(LAYOUT + 1).is_none());
}
