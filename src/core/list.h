/* list.h - a row's largest candidates by order key, with a certificate.
 *
 * `bound` is the largest key that was offered and is not in the list: strictly above it the list is complete. Lists of
 * disjoint tokens merge by offering one's entries to the other and taking the larger bound. A list that is full keeps
 * its `keep` largest entries and raises its bound, so offering costs amortised constant time. */
#ifndef FS_CORE_LIST_H
#define FS_CORE_LIST_H

#include "key.h"

typedef struct fs_list {
    uint64_t *key;    /* [capacity] order keys, in no order but for the popped ones */
    float *raw;       /* [capacity] raw logits beside them, or NULL: the key's logit is the raw one */
    int32_t count;    /* entries, popped ones included */
    int32_t popped;   /* the last `popped` entries are the largest, ascending: see list_at */
    int32_t sorted;   /* they all are popped */
    int32_t keep;     /* how many survive when the list is full; 0: there is no list */
    int32_t capacity; /* more than keep */
    uint64_t bound;
} fs_list;

FS_CORE void list_swap(fs_list *list, int32_t i, int32_t j) {
    uint64_t key = list->key[i];
    list->key[i] = list->key[j];
    list->key[j] = key;
    if (list->raw) {
        float raw = list->raw[i];
        list->raw[i] = list->raw[j];
        list->raw[j] = raw;
    }
}

/* Moves the `keep` largest keys to the front: quickselect, median of three. Keys are distinct. */
FS_CORE void list_select(fs_list *list, int32_t keep) {
    int32_t low = 0, high = list->count - 1;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (list->key[middle] > list->key[low]) list_swap(list, middle, low);
        if (list->key[high] > list->key[low]) list_swap(list, high, low);
        if (list->key[high] > list->key[middle]) list_swap(list, high, middle);
        uint64_t pivot = list->key[middle];
        int32_t i = low, j = high;
        while (i <= j) {
            while (list->key[i] > pivot) i++;
            while (list->key[j] < pivot) j--;
            if (i <= j) list_swap(list, i++, j--);
        }
        if (keep - 1 <= j) high = j;
        else if (keep - 1 >= i) low = i;
        else return;
    }
}

/* Drops all but the `keep` largest. */
FS_CORE void list_compact(fs_list *list) {
    if (list->count <= list->keep) return;
    list_select(list, list->keep);
    for (int32_t i = list->keep; i < list->count; i++)
        if (list->key[i] > list->bound) list->bound = list->key[i];
    list->count = list->keep;
}

/* Offers a candidate. Keys at or below the bound are dropped: the list could never prove them. */
FS_CORE void list_offer(fs_list *list, uint64_t key, float raw) {
    if (key <= list->bound) return;
    if (list->count == list->capacity) {
        list_compact(list);
        if (key > list->bound && list->count == list->capacity)
            list->bound = key; /* keep is capacity: no room to make */
        if (key <= list->bound) return;
    }
    list->key[list->count] = key;
    if (list->raw) list->raw[list->count] = raw;
    list->count++;
}

/* As long as there is room each entry is written, and stays if it is above the bound: no branch to guess. */
FS_CORE void list_merge(fs_list *into, const fs_list *from) {
    if (from->bound > into->bound) into->bound = from->bound;
    const int32_t room = into->capacity - into->count, at_once = room < from->count ? room : from->count;
    for (int32_t i = 0; i < at_once; i++) {
        into->key[into->count] = from->key[i];
        if (into->raw) into->raw[into->count] = from->raw ? from->raw[i] : 0.0f;
        into->count += from->key[i] > into->bound;
    }
    for (int32_t i = at_once; i < from->count; i++) list_offer(into, from->key[i], from->raw ? from->raw[i] : 0.0f);
}

/* Which child is larger nobody can guess, so it is computed; that the entry goes on down is a good guess. */
FS_CORE void list_sift(fs_list *list, int32_t at, int32_t heap) {
    const uint64_t key = list->key[at];
    const float raw = list->raw ? list->raw[at] : 0.0f;
    for (int32_t child; (child = 2 * at + 1) < heap; at = child) {
        const int32_t other = child + (child + 1 < heap);
        child += list->key[other] > list->key[child];
        if (key >= list->key[child]) break;
        list->key[at] = list->key[child];
        if (list->raw) list->raw[at] = list->raw[child];
    }
    list->key[at] = key;
    if (list->raw) list->raw[at] = raw;
}

/* Makes the entries a heap; after this only list_at may be called. */
FS_CORE void list_heapify(fs_list *list) {
    if (list->sorted) return;
    list->popped = 0;
    for (int32_t i = list->count / 2 - 1; i >= 0; i--) list_sift(list, i, list->count);
}

/* The index of the i-th largest entry, i < count. Pops as far as needed: a lazy heapsort, since most cuts are short. */
FS_CORE int32_t list_at(fs_list *list, int32_t i) {
    while (list->popped <= i) {
        int32_t last = list->count - 1 - list->popped;
        list_swap(list, 0, last);
        list->popped++;
        list_sift(list, 0, last);
    }
    return list->count - 1 - i;
}

#endif
