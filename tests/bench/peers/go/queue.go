package main

import (
	"fmt"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
)

const (
	cycles  = 300_000
	longest = 3 * time.Second
)

// measureQueue says how many keys a second go through add, get and done: all keys in, all keys out, again and again.
func measureQueue(kind string, keys int) error {
	names := make([]string, keys)
	for i := range names {
		names[i] = fmt.Sprintf("namespace-%d/name-%d", i%20, i)
	}
	add, get, done, err := queueOf(kind)
	if err != nil {
		return err
	}
	began, count := time.Now(), 0
	for count < cycles && time.Since(began) < longest {
		for i, name := range names {
			add(i, name)
		}
		for range names {
			done(get())
			if count++; count%100 == 0 && time.Since(began) > longest {
				break
			}
		}
	}
	return say(map[string]float64{"cycles": float64(count) / time.Since(began).Seconds()})
}

func queueOf(kind string) (add func(int, string), get func() string, done func(string), err error) {
	switch kind {
	case "plain":
		queue := workqueue.NewTyped[string]()
		add = func(_ int, key string) { queue.Add(key) }
		get = func() string { key, _ := queue.Get(); return key }
		return add, get, queue.Done, nil
	case "delayed":
		queue := workqueue.NewTypedDelayingQueue[string]()
		add = func(_ int, key string) { queue.AddAfter(key, time.Millisecond) }
		get = func() string { key, _ := queue.Get(); return key }
		return add, get, queue.Done, nil
	case "priority":
		queue := priorityqueue.New[string]("bench")
		add = func(i int, key string) {
			priority := -100 * (i % 2)
			queue.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, key)
		}
		get = func() string { key, _, _ := queue.GetWithPriority(); return key }
		return add, get, queue.Done, nil
	}
	return nil, nil, nil, fmt.Errorf("no kind %q", kind)
}
