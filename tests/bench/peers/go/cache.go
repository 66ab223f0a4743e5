package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

var vmiResource = schema.GroupVersionResource{
	Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances",
}

// holdCache syncs the informers, says what that took, and counts events.
func holdCache(kubeconfig, kind string, watches int) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	source, object, warm, err := sourceOf(config, kind)
	if err != nil {
		return err
	}
	if err := warm(); err != nil { // the connection is not what is measured
		return err
	}
	var events atomic.Int64
	informers := make([]cache.SharedIndexInformer, watches)
	for i := range informers {
		informers[i] = cache.NewSharedIndexInformer(source, object, 0, cache.Indexers{})
		_, err := informers[i].AddEventHandler(cache.ResourceEventHandlerFuncs{
			UpdateFunc: func(_, _ any) { events.Add(1) },
		})
		if err != nil {
			return err
		}
	}
	began, cpu := time.Now(), cpuSeconds()
	for _, informer := range informers {
		go informer.Run(context.Background().Done())
	}
	for _, informer := range informers {
		for !informer.HasSynced() {
			time.Sleep(time.Millisecond)
		}
	}
	seconds, used := time.Since(began).Seconds(), cpuSeconds()-cpu
	held := len(informers[0].GetStore().ListKeys())
	if err := say(map[string]any{"seconds": seconds, "cpu": used, "objects": held}); err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := say(map[string]any{"events": events.Load(), "objects": len(informers[0].GetStore().ListKeys())}); err != nil {
			return err
		}
	}
	return nil
}

// sourceOf gives the list and watch of a kind, an object of it, and a request to warm the connection up with.
func sourceOf(config *rest.Config, kind string) (*cache.ListWatch, runtime.Object, func() error, error) {
	switch kind {
	case "dynamic-vmis":
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			return nil, nil, nil, err
		}
		vmis := client.Resource(vmiResource)
		source := &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				return vmis.List(ctx, options)
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				return vmis.Watch(ctx, options)
			},
		}
		warm := func() error {
			_, err := vmis.List(context.Background(), metav1.ListOptions{Limit: 1})
			return err
		}
		return source, nil, warm, nil
	case "typed-vmis":
		types := runtime.NewScheme()
		types.AddKnownTypes(vmiResource.GroupVersion(), &VirtualMachineInstance{}, &VirtualMachineInstanceList{})
		metav1.AddToGroupVersion(types, vmiResource.GroupVersion())
		factory := serializer.NewCodecFactory(types)
		return typed(config, "/apis", vmiResource, factory, runtime.NewParameterCodec(types), &VirtualMachineInstance{})
	case "typed-pods", "protobuf-pods":
		if kind == "protobuf-pods" {
			config.ContentType = runtime.ContentTypeProtobuf
		}
		pods := corev1.SchemeGroupVersion.WithResource("pods")
		return typed(config, "/api", pods, scheme.Codecs, scheme.ParameterCodec, &corev1.Pod{})
	}
	return nil, nil, nil, fmt.Errorf("no kind %q", kind)
}

func typed(
	config *rest.Config,
	path string,
	resource schema.GroupVersionResource,
	codecs serializer.CodecFactory,
	parameters runtime.ParameterCodec,
	object runtime.Object,
) (*cache.ListWatch, runtime.Object, func() error, error) {
	version := resource.GroupVersion()
	config.APIPath, config.GroupVersion = path, &version
	config.NegotiatedSerializer = codecs.WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, nil, nil, err
	}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return client.Get().Resource(resource.Resource).VersionedParams(&options, parameters).Do(ctx).Get()
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.Watch = true
			return client.Get().Resource(resource.Resource).VersionedParams(&options, parameters).Watch(ctx)
		},
	}
	warm := func() error {
		options := metav1.ListOptions{Limit: 1}
		request := client.Get().Resource(resource.Resource).VersionedParams(&options, parameters)
		return request.Do(context.Background()).Error()
	}
	return source, object, warm, nil
}
