// Lists of registers for the asm of wgmma: as it names them, and as C++ hands them over, read and written (`C`: "+f" or
// "+r" of one).
#pragma once

#define SFAST_REGISTERS_32                                                   \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SFAST_REGISTERS_64                                                               \
    SFAST_REGISTERS_32                                                                   \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SFAST_REGISTERS_80 \
    SFAST_REGISTERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define SFAST_REGISTERS_96 \
    SFAST_REGISTERS_80     \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SFAST_REGISTERS_128                                                                          \
    SFAST_REGISTERS_96                                                                               \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

#define SFAST_4(C, array, i) C(array[i]), C(array[i + 1]), C(array[i + 2]), C(array[i + 3])
#define SFAST_16(C, array, i) \
    SFAST_4(C, array, i), SFAST_4(C, array, i + 4), SFAST_4(C, array, i + 8), SFAST_4(C, array, i + 12)
#define SFAST_32(C, array, i) SFAST_16(C, array, i), SFAST_16(C, array, i + 16)
#define SFAST_64(C, array) SFAST_32(C, array, 0), SFAST_32(C, array, 32)

#define SFAST_INT(value) "+r"(value)
#define SFAST_FLOAT(value) "+f"(value)
