#include "store/artifact_types.h"

#include "h3/operator.h"

const char *h3_artifact_dtype_name(int32_t dtype)
{
    switch (dtype) {
    case H3_F32: return "F32";
    case H3_BF16: return "BF16";
    case H3_I32: return "I32";
    case H3_I64: return "I64";
    case H3_F64: return "F64";
    default: return NULL;
    }
}

/* bfloat16: sign at bit 15, 8 bits of exponent (bias 127) at 7, 7 bits of mantissa at 0. Fields shrink before the size may. */
static hid_t bfloat16(void)
{
    hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    if (type < 0) return type;
    if (H5Tset_fields(type, 15, 7, 8, 0, 7) < 0 || H5Tset_size(type, 2) < 0 || H5Tset_ebias(type, 127) < 0) {
        H5Tclose(type);
        return H5I_INVALID_HID;
    }
    return type;
}

hid_t h3_artifact_type(int32_t dtype)
{
    switch (dtype) {
    case H3_F32: return H5Tcopy(H5T_IEEE_F32LE);
    case H3_BF16: return bfloat16();
    case H3_I32: return H5Tcopy(H5T_STD_I32LE);
    case H3_I64: return H5Tcopy(H5T_STD_I64LE);
    case H3_F64: return H5Tcopy(H5T_IEEE_F64LE);
    default: return H5I_INVALID_HID;
    }
}

void h3_artifact_silence(void) { H5Eset_auto2(H5E_DEFAULT, NULL, NULL); }
